"""Training on records on Ray, from start to end, against one process."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from mmr1.config import Config
from mmr1.evaluation.benchmarks import run_evaluations
from mmr1.trainer.sft import run_sft
from mmr1_contrib.offline.dpo import run_dpo
from mmr1_contrib.offline.iterative_dpo import run_iterative_dpo
from mmr1_contrib.offline.iterative_grpo import run_iterative_grpo
from mmr1_contrib.offline.reward_model import run_reward_model
from tests.jsonl import read_jsonl
from tests.trainer.test_resume import LENGTH_REWARD

pytest.importorskip("ray", reason="Ray is not installed")


@pytest.fixture(scope="module", autouse=True)
def one_ray() -> Iterator[None]:
    """One cluster for all runs."""
    import ray

    ray.init(
        address="local",
        num_cpus=4,
        include_dashboard=False,
        log_to_driver=False,
        logging_level="ERROR",
    )
    yield
    ray.shutdown()


@pytest.fixture(scope="module")
def records(mixed) -> Path:
    """Prompts of text, images and videos, with a demonstration, a pair and labelled steps each."""
    rows = [json.loads(line) for line in mixed.read_text().splitlines()]
    for i, row in enumerate(rows):
        words = " and ".join(["seven"] * (1 + i % 3))
        row["meta"] = {
            "chosen": f"it is {words}",
            "rejected": "no",
            "completions": [words, "no"],
            "labels": [True, False],
        }
        row["messages"].append({"role": "assistant", "content": f"it is {words}"})
    path = mixed.parent / "answered.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


ROUNDS = {"count": 2, "prompts": 4, "preferred_by": "reward"}


def config_of(
    tiny_model: Path, records: Path, out: Path, steps: int, ranks: int, **sections: dict[str, Any]
) -> Config:
    tree: dict[str, dict[str, Any]] = {
        "model": {"path": str(tiny_model), "dtype": "float32"},
        "data": {"train": str(records), "num_workers": 0, "train_batch_size": 3},
        "rollout": {"engine": "hf", "max_prompt_length": 88, "max_response_length": 8, "n": 3},
        "optimizer": {"lr": 1e-3, "scheduler": {"type": "constant", "warmup_steps": 0}},
        "trainer": {
            "max_steps": steps,
            "output_dir": str(out),
            "threads": 1,
            "logging_steps": 100,
            "max_tokens_per_gpu": 60,
        },
        "resources": {"ranks": ranks},
    }
    for name, keys in sections.items():
        tree[name] = {**tree.get(name, {}), **keys}
    return Config.model_validate(tree)


def metrics(run: Path) -> list[dict[str, float]]:
    rows = read_jsonl(run / "metrics.jsonl")
    return [{k: v for k, v in row.items() if not k.startswith("time/")} for row in rows]


def assert_same(first: Path, second: Path) -> None:
    for left, right in zip(metrics(first), metrics(second), strict=True):
        assert left == pytest.approx(right, abs=1e-5, rel=1e-5)
    ours, theirs = (
        load_file(max((run / "checkpoints").glob("step_??????")) / "model.safetensors")
        for run in (first, second)
    )
    apart = torch.cat([(ours[name] - theirs[name]).abs().flatten() for name in theirs])
    assert (apart > 1e-5).float().mean() < 1e-3  # where a gradient is no more than rounding


@pytest.mark.slow
def test_fine_tuning_goes_on_with_another_number_of_ranks(tiny_model, records, tmp_path):
    saved = {"checkpoints": {"async_save": True, "save_steps": 1}}
    batches = {"train_batch_size": 5}
    for steps, ranks in ((2, 2), (4, 1)):
        run = tmp_path / "run"
        many = config_of(tiny_model, records, run, steps, ranks, data=batches, trainer=saved)
        run_sft(many, resume=True)
    run_sft(config_of(tiny_model, records, tmp_path / "whole", 4, 1, data=batches))
    assert_same(tmp_path / "run", tmp_path / "whole")


@pytest.mark.slow
def test_an_evaluation_uses_all_engines(tiny_model, records, tmp_path):
    for engines in (1, 2):
        run_evaluations(
            config_of(
                tiny_model,
                records,
                tmp_path,
                1,
                1,
                eval={
                    "data": str(records),
                    "sampled": {"n": 2},
                    "output_dir": str(tmp_path / str(engines)),
                },
                resources={"engines": engines},
            )
        )
    one, two = (sorted((tmp_path / n / "completions.jsonl").read_text().splitlines()) for n in "12")
    assert len(one) == 16 * 3
    assert one == two


@pytest.mark.slow
@pytest.mark.parametrize(
    ("run", "sections"),
    [
        (run_dpo, {}),
        # Four steps see all records: KTO compares with answers to other prompts of the run.
        (
            run_dpo,
            {
                "dpo": {"loss": "kto"},
                "data": {"train_batch_size": 4},
                "model": {"lora": {"rank": 4}},
            },
        ),
        (run_reward_model, {}),
        (
            run_reward_model,
            {"rm": {"type": "process"}, "model": {"lora": {"rank": 4}}},
        ),
        (
            run_iterative_dpo,
            {"dpo": {"rounds": ROUNDS}},
        ),
    ],
    ids=["dpo", "kto", "rankings", "steps", "rounds"],
)
def test_ranks_learn_what_one_process_learns_and_go_on(
    run: Callable[..., Path], sections, tiny_model, records, tmp_path
):
    reward = tmp_path / "length.py"
    reward.write_text(LENGTH_REWARD)
    (tmp_path / "accident").write_text("")
    length = {"use": f"{reward}:reward", "sandbox": None}
    sections = {"rewards": {"functions": {"length": length}}, **sections}
    if run is run_iterative_dpo:
        sections["trainer"] = {"validation": {"data": str(records)}}
    # The first of two rounds has two steps of four and of five.
    for steps in (4, 5):
        run(config_of(tiny_model, records, tmp_path / "run", steps, 2, **sections), resume=True)
    run(config_of(tiny_model, records, tmp_path / "whole", 5, 1, **sections))
    assert_same(tmp_path / "run", tmp_path / "whole")
    if run is run_iterative_dpo:  # evaluated with what it learnt, and not with what sampled last
        ours, theirs = (
            read_jsonl(tmp_path / name / "eval/completions.jsonl") for name in ("run", "whole")
        )
        assert ours == theirs


@pytest.mark.slow
@pytest.mark.vllm
def test_rounds_on_shared_gpus_are_those_on_gpus_of_their_own(
    tiny_model, records, tmp_path, capsys
):
    """The agreement of engine and trainer is checked again when the engines have slept."""
    pytest.importorskip("vllm", reason="vLLM is not installed")
    reward = tmp_path / "length.py"
    reward.write_text(LENGTH_REWARD)
    (tmp_path / "accident").write_text("")
    shared = {"type": "vllm_colocate", "offload_trainer": True}
    for name, engine, colocate in (("split", "vllm", False), ("shared", shared, True)):
        run_iterative_dpo(
            config_of(
                tiny_model,
                records,
                tmp_path / name,
                2,
                2,
                rewards={"functions": {"length": {"use": f"{reward}:reward", "sandbox": None}}},
                dpo={"rounds": ROUNDS},
                rollout={"engine": engine},
                resources={"ranks": 2} if colocate else {"ranks": 2, "engines": 2},
            )
        )
        said = capsys.readouterr().out
        assert said.count("engine and trainer agree") == 1 + colocate
    assert_same(tmp_path / "shared", tmp_path / "split")


@pytest.mark.slow
def test_rounds_with_a_reward_model_on_ranks_are_those_of_one_process(
    tiny_model, records, tmp_path
):
    first = run_reward_model(config_of(tiny_model, records, tmp_path / "first", 2, 1))
    reward = tmp_path / "length.py"
    reward.write_text(LENGTH_REWARD)
    (tmp_path / "accident").write_text("")
    functions = {
        "length": {"use": f"{reward}:reward", "sandbox": None, "weight": 0},
        "liked": {"use": "reward_model", "options": {"path": str(first)}},
    }
    sections = {
        "rewards": {"functions": functions},
        "iterate": {"rm_steps": 2, "ranked_by": "length", "history": str(records)},
        "eval": {"accuracy_function": "length"},
    }
    for ranks in (1, 2):
        run_iterative_grpo(
            config_of(tiny_model, records, tmp_path / str(ranks), 2, ranks, **sections)
        )
    for part in ("round_1/policy", "round_1/reward_model", "round_2/policy"):
        assert_same(tmp_path / "2" / part, tmp_path / "1" / part)
