"""``mmr1 reward what-if`` on small runs: their own reward changes nothing, its opposite all."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from mmr1.config import Config
from mmr1.evaluation.what_if import what_if
from mmr1.rewards.specs import read_spec
from mmr1.trainer.train import run_training
from tests.jsonl import read_jsonl

REWARD = """
def shade(completion, sign=1.0, **columns):
    return sign * (sum(map(ord, completion)) % 7)

def second(completion, **columns):
    return float(len(completion) % 3)

def asks_for_a_column(completion, votes, **columns):
    return float(votes)
"""


@pytest.fixture(scope="module")
def reward(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("reward") / "own.py"
    path.write_text(REWARD)
    return path


def run(model: Path, data: Path, reward: Path, out: Path, **algorithm: object) -> Path:
    functions = {
        "shade": {"use": f"{reward}:shade", "weight": 0.7},
        "second": {"use": f"{reward}:second"},
    }
    config = Config(
        model={"path": str(model), "dtype": "float32"},
        data={"train": str(data / "rl.jsonl"), "train_batch_size": 3},
        rollout={"engine": "hf", "n": 4, "max_prompt_length": 104, "max_response_length": 12},
        algorithm=algorithm,
        rewards={"functions": functions},
        trainer={"max_steps": 2, "output_dir": str(out), "threads": 1},
    )
    run_training(config)
    return out


@pytest.mark.parametrize(
    "algorithm",
    [
        {"name": "grpo"},
        {"name": "rloo"},
        {"name": "reinforce_pp_baseline"},
        {"advantage": {"type": "gdpo"}},
        {"advantage": {"type": "optimal_baseline"}},
    ],
    ids=lambda keys: "+".join(map(str, keys)),
)
def test_the_runs_own_reward_gives_the_advantages_that_it_learned_from(
    tiny_model: Path, digits: Path, reward: Path, tmp_path: Path, algorithm: dict[str, object]
) -> None:
    folder = run(tiny_model, digits, reward, tmp_path / "run", **algorithm)
    own = tmp_path / "own.yaml"
    own.write_text(
        "functions:\n"
        f"  shade: {{use: '{reward}:shade', weight: 0.7}}\n"
        f"  second: {{use: '{reward}:second'}}\n"
    )
    result = what_if(folder, read_spec(str(own)))
    assert result.notes == []
    stored = [
        completion["advantage"]
        for file in sorted((folder / "rollouts").iterdir())
        for row in read_jsonl(file)
        for completion in row["completions"]
    ]
    assert any(stored)
    assert len(stored) == 24
    for side in (0, 1):
        assert [pair[side] for pair in result.advantages] == pytest.approx(stored, abs=1e-5)


def test_truncated_completions_that_the_loss_leaves_out_have_no_advantage(
    tiny_model: Path, digits: Path, reward: Path, tmp_path: Path
) -> None:
    folder = run(tiny_model, digits, reward, tmp_path / "run", mask_truncated_completions=True)
    result = what_if(folder, read_spec(f"{reward}:shade"))
    cut = [c["truncated"] for group in result.groups for c in group.row["completions"]]
    assert any(cut)
    assert not any(any(pair) for pair, out in zip(result.advantages, cut, strict=True) if out)


def test_the_opposite_reward_changes_every_sign(
    tiny_model: Path, digits: Path, reward: Path, tmp_path: Path, mmr1
) -> None:
    folder = run(tiny_model, digits, reward, tmp_path / "run", name="grpo")
    out = tmp_path / "rows.jsonl"
    code, printed, _ = mmr1(
        "reward", "what-if", folder, "--reward", f"{reward}:shade:sign=-1", "--output", out
    )
    assert code == 0, printed
    assert "24 completions of 6 prompts in 2 steps" in printed
    rows = read_jsonl(out)
    assert {(row["step"], row["status"]) for row in rows} == {(1, "ok"), (2, "ok")}
    # The run pays the second function too: only the first one's order is turned around.
    result = what_if(folder, read_spec(f"{reward}:shade"))
    forward = [new for _, new in result.advantages]
    assert [row["advantage"] for row in rows] == pytest.approx([-a for a in forward], abs=1e-5)


def test_columns_come_from_the_records_and_their_loss_is_told(
    tiny_model: Path, digits: Path, reward: Path, tmp_path: Path
) -> None:
    data = tmp_path / "data"
    shutil.copytree(digits / "images", data / "images")
    rows = (digits / "rl.jsonl").read_text().splitlines()[:6]
    labelled = "".join(row[:-1] + ', "meta": {"votes": 3}}\n' for row in rows)
    (data / "rl.jsonl").write_text(labelled)
    folder = run(tiny_model, data, reward, tmp_path / "run", name="grpo")
    spec = read_spec(f"{reward}:asks_for_a_column")
    assert {after.value for _, after in what_if(folder, spec).rewards} == {3.0}
    (data / "rl.jsonl").unlink()
    lost = what_if(folder, spec)
    assert "their further columns are not passed on" in lost.notes[0]
    assert {after.valid for _, after in lost.rewards} == {False}


def test_a_run_whose_algorithm_needs_more_than_rewards_says_so(
    tiny_model: Path, digits: Path, reward: Path, tmp_path: Path
) -> None:
    folder = run(tiny_model, digits, reward, tmp_path / "run", name="remax")
    (note,) = what_if(folder, read_spec(f"{reward}:shade")).notes
    assert "each reward less the mean of its group" in note


def test_a_folder_without_rollouts_is_refused(tmp_path: Path, mmr1) -> None:
    code, _, error = mmr1("reward", "what-if", tmp_path, "--reward", "math")
    assert code == 2
    assert "config.yaml cannot be read" in error
