"""The configuration of a short RL run on digits."""

from __future__ import annotations

from pathlib import Path

from mmr1.config import Config
from tests.jsonl import read_jsonl


def rl(warm: Path, digits: Path, out: Path, **rollout: object) -> Config:
    return Config(
        model={"path": str(warm), "dtype": "float32"},
        data={"train": str(digits / "rl.jsonl"), "train_batch_size": 4},
        rollout={
            "engine": "hf",
            "n": 4,
            "max_prompt_length": 104,
            "max_response_length": 24,
            **rollout,
        },
        algorithm={"kl": {"coef": 0.01}},
        optimizer={"lr": 3e-4},
        trainer={
            "max_steps": 3,
            "output_dir": str(out),
            "log_completions_steps": 2,
            "checkpoints": {"save_steps": 2},
            "validation": {"data": str(digits / "eval.jsonl")},
            "threads": 1,
        },
        eval={"limit": 40},
    )


def lines(path: Path) -> list[dict]:
    return read_jsonl(path)
