"""Small recorded runs for the audit."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

REWARD = "def reward(completion: str, answer) -> float:\n    return len(completion) % 7 / 7\n"


@pytest.fixture
def recorded(tiny_model, digits, tmp_path, mmr1) -> Callable[..., Path]:
    """Train a few real steps and return the run's folder, which holds the step files."""
    (tmp_path / "noise.py").write_text(REWARD)
    function = {"use": f"{tmp_path}/noise.py:reward", "sandbox": None}
    base: dict[str, Any] = {
        "model": {"path": str(tiny_model), "dtype": "float32"},
        "data": {"train": str(digits / "rl.jsonl"), "train_batch_size": 4},
        "rollout": {"engine": "hf", "n": 4, "max_response_length": 48},
        "rewards": {"workers": 1, "functions": {"noise": function}},
        "algorithm": {"kl": {"coef": 0.1}, "ppo_mini_batch_size": 2},
        "optimizer": {"lr": 1e-3, "weight_decay": 0.01, "scheduler": {"warmup_steps": 4}},
        "trainer": {"max_steps": 1, "threads": 1},
    }

    def train(*overrides: str, name: str = "run") -> Path:
        config, folder = tmp_path / "run.yaml", tmp_path / name
        config.write_text(yaml.safe_dump(base))
        code, _, error = mmr1("train", config, f"trainer.output_dir={folder}", *overrides)
        assert code == 0, error
        return folder

    return train
