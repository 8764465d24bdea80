"""No key of the wing is idle: set to another value it is read by the run, or refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from mmr1 import start
from tests.config.idle_runs import Run, idle, reads_of, write_files

HELD_OUT = "trainer.validation.data={folder}/pairs.jsonl"
REWARDS = (
    "rewards={own: {type: '{folder}/own.py:reward', sandbox: null}, "
    "liked: {type: reward_model, path: '{folder}/rm/checkpoints/step_000002'}}"
)


def on_pairs(name: str, command: str, *keys: str) -> Run:
    return Run(name, command, keys, samples=False, data="pairs.jsonl")


RM = on_pairs("rm", "rm", HELD_OUT)
RUNS = [
    RM,
    on_pairs("rm of steps", "rm", "rm.type=process", HELD_OUT),
    *(
        on_pairs(f"dpo {kind}", "dpo", f"dpo.loss={kind}")
        for kind in ("sigmoid", "sigmoid_norm", "ipo", "robust", "simpo", "orpo", "kto")
    ),
    Run(
        "dpo in rounds",
        "dpo",
        ("dpo.rounds.count=2", "dpo.rounds.prompts=4", "dpo.rounds.preferred_by=reward"),
    ),
    Run(
        "iterative grpo",
        "iterative-grpo",
        (
            "iterative_grpo.rounds=2",
            "iterative_grpo.rm_steps=2",
            "iterative_grpo.ranked_by=own",
            REWARDS,
        ),
    ),
]
QUICK = ("rm of steps", "dpo sigmoid")


@pytest.fixture(scope="module")
def folder(tiny_model: Path, digits: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("idle")
    write_files(folder, tiny_model, digits)
    return folder


@pytest.mark.parametrize(
    "run",
    [pytest.param(run, marks=[] if run.name in QUICK else pytest.mark.slow) for run in RUNS],
    ids=lambda run: run.name,
)
def test_a_key_that_a_run_does_not_read_is_refused(run: Run, folder: Path) -> None:
    if run.command == "iterative-grpo" and not (folder / "rm").exists():
        start.run(RM.load(folder).config)
    reads = reads_of(run.load(folder).config, folder)
    assert idle(run, folder, reads) == []
