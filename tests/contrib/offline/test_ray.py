"""The wing's commands on Ray, from start to end, against one process."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from mmr1_contrib.offline.dpo import run_dpo
from mmr1_contrib.offline.iterative_dpo import run_iterative_dpo
from mmr1_contrib.offline.iterative_grpo import run_iterative_grpo
from mmr1_contrib.offline.reward_model import run_reward_model
from tests.jsonl import read_jsonl
from tests.trainer.distributed.ray_runs import (
    answered,
    assert_same,
    config_of,
    ray_of_this_machine,
)

pytest.importorskip("ray", reason="Ray is not installed")

LENGTH = "def reward(completion: str, answer) -> float:\n    return len(completion) % 7 / 7\n"
ROUNDS = {"count": 2, "prompts": 4, "preferred_by": "reward"}


@pytest.fixture(scope="module", autouse=True)
def one_ray() -> Iterator[None]:
    """One cluster for all runs."""
    with ray_of_this_machine():
        yield


@pytest.fixture(scope="module")
def records(mixed) -> Path:
    return answered(mixed)


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
    reward.write_text(LENGTH)
    length = {"type": f"{reward}:reward", "sandbox": None}
    sections = {"rewards": {"length": length}, **sections}
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
    reward.write_text(LENGTH)
    shared = {"type": "vllm", "colocate": True, "offload_trainer": True}
    for name, engine, colocate in (("split", "vllm", False), ("shared", shared, True)):
        run_iterative_dpo(
            config_of(
                tiny_model,
                records,
                tmp_path / name,
                2,
                2,
                rewards={"length": {"type": f"{reward}:reward", "sandbox": None}},
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
    reward.write_text(LENGTH)
    functions = {
        "length": {"type": f"{reward}:reward", "sandbox": None, "weight": 0},
        "liked": {"type": "reward_model", "path": str(first)},
    }
    sections = {
        "rewards": functions,
        "iterative_grpo": {"rm_steps": 2, "ranked_by": "length", "history": str(records)},
        "eval": {"accuracy_function": "length"},
    }
    for ranks in (1, 2):
        run_iterative_grpo(
            config_of(tiny_model, records, tmp_path / str(ranks), 2, ranks, **sections)
        )
    for part in ("round_1/policy", "round_1/reward_model", "round_2/policy"):
        assert_same(tmp_path / "2" / part, tmp_path / "1" / part)
