"""Streaming runs, and whether they learned."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from mmr1.config import Config
from tests.jsonl import read_jsonl

LENGTH = "def reward(completion: str, answer) -> float:\n    return len(completion) % 7 / 7\n"


def run_config(tiny_model, digits, tmp_path, name: str, **rollout: Any) -> Config:
    reward = tmp_path / "length.py"
    reward.write_text(LENGTH)
    return Config(
        model={"path": str(tiny_model), "dtype": "float32"},
        data={"train": str(digits / "rl.jsonl"), "train_batch_size": 2},
        rollout={
            "n": 3,
            "max_prompt_length": 56,
            "max_response_length": 100,
            "max_off_policy_steps": 2,
            "queue": {"at_new_weights": "continue"},
            **rollout,
        },
        rewards={"length": {"type": f"{reward}:reward", "sandbox": None}},
        algorithm={"ppo_epochs": 2},
        optimizer={"lr": 1e-3},
        trainer={
            "max_steps": 8,
            "checkpoints": None,
            "output_dir": str(tmp_path / name),
            "log_completions_steps": 1,
            "threads": 1,
        },
    )


def learned(out: Path) -> list[dict[str, Any]]:
    """The groups that a run learned from, in order."""
    return [row for file in sorted((out / "rollouts").iterdir()) for row in read_jsonl(file)]


def assert_within(out: Path, bound: int, updates: int) -> None:
    """The tokens of each step are of weights at most ``bound`` steps old, and all accounted for."""
    lines = {line["step"]: line for line in read_jsonl(out / "metrics.jsonl")}
    for step in lines:
        spans = []
        for row in [row for row in learned(out) if row["step"] == step]:
            for completion in row["completions"]:
                whole = [[completion["policy_version"], completion["tokens"]]]
                own = completion.get("versions", whole)
                assert sum(tokens for _, tokens in own) == completion["tokens"]
                assert completion["policy_version"] == min(version for version, _ in own)
                spans += own
        now = (step - 1) * updates
        assert all(0 <= now - version <= bound * updates for version, _ in spans)
        assert lines[step]["rollout/staleness"] == now - min(version for version, _ in spans)
        tokens = sum(tokens for _, tokens in spans)
        mean = sum((now - version) * tokens for version, tokens in spans) / tokens
        assert lines[step]["rollout/staleness_mean"] == pytest.approx(mean)
