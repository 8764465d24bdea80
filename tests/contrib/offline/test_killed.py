"""Every kind of training, killed before, in and after a save, ends as a run that was left alone."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from mmr1.config.file import dump_yaml
from tests.contrib.offline.runs import LENGTH_PARITY, config_of
from tests.trainer.same_runs import assert_same

SAMPLED = (
    "rollout.n=4",
    "rollout.max_prompt_length=88",
    "rollout.max_response_length=8",
    "rewards.timeout_s=60",
)
KINDS = {
    "dpo": ("dpo", ()),
    "kto": ("dpo", ("dpo.loss={type: kto, beta: 0.5}",)),
    "rounds of dpo": ("dpo", ("dpo.rounds={count: 2, prompts: 4}", *SAMPLED)),
    "rm": ("rm", ()),
    "lora": ("train", ("model.lora={rank: 2}", "data.train_batch_size=2", *SAMPLED)),
}

AT: dict[str, Callable[[Path], bool]] = {
    "before the first save": lambda run: bool(_text(run / "metrics.jsonl")),
    "in a save": lambda run: (run / "checkpoints/step_000002.tmp/model.safetensors").exists(),
    "after a save": lambda run: (run / "checkpoints/step_000004").exists(),
}


def _text(path: Path) -> str:
    return path.read_text() if path.exists() else ""


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_killed_runs_end_with_the_weights_of_one_that_was_not(
    kind, tiny_model, digits, pair_file, tmp_path
):
    command, keys = KINDS[kind]
    (tmp_path / "own.py").write_text(LENGTH_PARITY)
    own = f"rewards.functions={{own: {{use: '{tmp_path}/own.py:reward', sandbox: null}}}}"
    samples = SAMPLED[0] in keys
    data = digits / "rl.jsonl" if samples else pair_file

    def started(name: str) -> subprocess.Popen[bytes]:
        run = config_of(
            *(tiny_model, data, digits, tmp_path / name),
            *("data.train_batch_size=6", "data.num_workers=0", "trainer.max_steps=6"),
            "trainer.checkpoints={save_steps: 2, save_total_limit: 9}",
            *([own] if samples else []),
            *keys,
            command=command,
        )
        path = tmp_path / f"{name}.yaml"
        path.write_text(dump_yaml(run))
        program = [sys.executable, "-m", "mmr1", command, str(path), "--resume"]
        return subprocess.Popen(program, stdout=subprocess.DEVNULL, start_new_session=True)

    assert started("whole").wait() == 0
    for when, reached in AT.items():
        process = started("killed")
        while process.poll() is None and not reached(tmp_path / "killed"):
            time.sleep(0.0005)
        process.kill()
        assert process.wait() == -signal.SIGKILL, f"it ended {when}"
    assert started("killed").wait() == 0
    assert_same(tmp_path / "whole", tmp_path / "killed")


AT_ROUNDS: dict[str, Callable[[Path], bool]] = {
    "in the save of a policy": lambda run: (
        run / "round_1/policy/checkpoints/step_000002.tmp/model.safetensors"
    ).exists(),
    "in the training of a reward model": lambda run: bool(
        _text(run / "round_1/reward_model/metrics.jsonl")
    ),
    "after a round": lambda run: (run / "round_1/reward_model/checkpoints/step_000002").exists(),
}


@pytest.mark.slow
def test_rounds_of_a_policy_and_a_reward_model_that_are_killed_end_as_those_that_were_not(
    tiny_model, digits, pair_file, reward_model, tmp_path
):
    (tmp_path / "own.py").write_text(LENGTH_PARITY)
    own = f"own: {{use: '{tmp_path}/own.py:reward', sandbox: null, weight: 0}}"
    liked = f"liked: {{use: reward_model, options: {{path: '{reward_model}'}}}}"

    folder = tmp_path / "run"  # the state of a reward model names the rankings by their paths

    def started() -> subprocess.Popen[bytes]:
        run = config_of(
            *(tiny_model, digits / "rl.jsonl", digits, folder),
            f"rewards.functions={{{own}, {liked}}}",
            *("data.train_batch_size=4", "data.num_workers=0", *SAMPLED),
            *("trainer.max_steps=2", "iterative_grpo.rounds=2", "iterative_grpo.rm_steps=2"),
            *(f"iterative_grpo.history={pair_file}", "iterative_grpo.ranked_by=own"),
            *("eval.accuracy_function=own", "trainer.checkpoints={save_steps: 1}"),
            command="iterative-grpo",
        )
        path = tmp_path / "run.yaml"
        path.write_text(dump_yaml(run))
        program = [sys.executable, "-m", "mmr1", "iterative-grpo", str(path), "--resume"]
        return subprocess.Popen(program, stdout=subprocess.DEVNULL, start_new_session=True)

    assert started().wait() == 0
    folder.rename(tmp_path / "whole")
    for when, reached in AT_ROUNDS.items():
        process = started()
        while process.poll() is None and not reached(folder):
            time.sleep(0.0005)
        process.kill()
        assert process.wait() == -signal.SIGKILL, f"it ended {when}"
    assert started().wait() == 0
    parts = [path.parent.relative_to(tmp_path / "whole") for path in _runs(tmp_path / "whole")]
    assert len(parts) == 3  # the last round has no reward model
    for part in parts:
        assert_same(tmp_path / "whole" / part, folder / part)


def _runs(folder: Path) -> list[Path]:
    return sorted(folder.glob("round_*/*/config.yaml"))
