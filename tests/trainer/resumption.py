"""Runs that an accident ends, and that are resumed to the same bits."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from mmr1.config import Config
from mmr1.trainer.runs.step import StoppedError
from mmr1.trainer.train import run_training
from tests.trainer.same_runs import assert_same

LENGTH_REWARD = """
from pathlib import Path

def reward(completion: str, answer, **sample) -> float:
    exec(Path(__file__).with_name("accident").read_text())
    return len(completion) % 7 / 7
"""


# Everything that is carried from step to step: a moving baseline, moments of the rewards, a
# reference that is refreshed, coefficients that adapt, groups that are replayed, several optimizer
# steps a rollout.
ALGORITHM = {
    "name": "reinforce",
    "kl": {"coef": 0.02, "target": 0.01, "reference": {"type": "moving", "sync_steps": 2}},
    "entropy": {"coef": 0.01, "target": 2.0},
    "filter_groups": {"type": "replay", "capacity": 3},
    "ppo_epochs": 2,
}


def rl(
    tiny_model: Path,
    digits: Path,
    reward: Path,
    out: Path,
    algorithm: Mapping[str, object] = ALGORITHM,
    **trainer: object,
) -> Config:
    return Config(
        model={"path": str(tiny_model), "dtype": "float32"},
        data={
            "train": str(digits / "rl.jsonl"),
            "train_batch_size": 2,
            "curriculum": {"function": "length", "floor": 0.5},
        },
        rollout={
            "engine": "hf",
            "n": 3,
            "max_prompt_length": 56,
            "max_response_length": 8,
        },
        rewards={"length": {"type": f"{reward}:reward", "sandbox": None}},
        scoring={"timeout_s": 60},  # an accident takes its time on a busy machine
        algorithm=algorithm,
        optimizer={"lr": 1e-3, "scheduler": {"warmup_steps": 2}},
        trainer={
            "max_steps": 5,
            "output_dir": str(out),
            "log_completions_steps": 1,
            "checkpoints": {"save_steps": 2},
            "threads": 1,
            "logging_steps": 100,
            **trainer,
        },
    )


def plan_accident(folder: Path, call: int, action: str) -> None:
    """Do ``action`` at the given call of the reward, once.

    The reward has a process of its own. ``trainer`` is the process of the test, which trains.
    """
    seen = str(folder / "calls")
    (folder / "accident").write_text(
        f"import os, signal, time\ntrainer = {os.getpid()}\n"
        f"with open({seen!r}, 'a') as file: file.write('.')\n"
        f"if os.path.getsize({seen!r}) == {call}: {action}\n"
    )


def assert_resumes_to_the_same_bits(config: Callable[[str], Config], folder: Path) -> None:
    """A run of five steps whole, in ``folder/whole``, and stopped and resumed, in ``parts``."""
    run_training(config("whole"))
    plan_accident(folder, 15, "os.kill(trainer, signal.SIGTERM)")
    with pytest.raises(StoppedError, match="saved"):
        run_training(config("parts"))
    run_training(config("parts"), resume=True)
    assert_same(folder / "whole", folder / "parts")
