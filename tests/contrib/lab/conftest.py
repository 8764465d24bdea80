"""Small recorded runs for the audit."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from PIL import Image

from mmr1.vision.families.tiny import new_model

REWARD = "def reward(completion: str, answer) -> float:\n    return len(completion) % 7 / 7\n"
STEPS = """
def steps(completion: str, sample) -> list[tuple[int, float]]:
    ends = [end for end in (9, 21, len(completion)) if end <= len(completion)]
    return [(end, (end * 7 + len(completion)) % 5 / 4) for end in sorted(set(ends))]
"""


@pytest.fixture(scope="session")
def coloured(digits: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Digits in colour: on grey scans exchanged channels cannot be seen."""
    folder = tmp_path_factory.mktemp("data") / "coloured"
    (folder / "images").mkdir(parents=True)
    rows = (digits / "rl.jsonl").read_text().splitlines()[:40]
    for number, row in enumerate(map(json.loads, rows)):
        path = row["messages"][0]["content"][0]["path"]
        grey = Image.open(digits / path).convert("L")
        colours = (number * 37 % 200, 40), (255 - number * 11 % 90, 230), (200, number * 53 % 150)
        channels = [grey.point(lambda v, a=a, b=b: a + v * (b - a) // 255) for a, b in colours]
        Image.merge("RGB", channels).save(folder / path)
    (folder / "rl.jsonl").write_text("".join(f"{row}\n" for row in rows))
    return folder


@pytest.fixture
def recorded(tiny_model, coloured, tmp_path, mmr1) -> Callable[..., Path]:
    """Train a few real steps and return the run's folder, which holds the step files."""
    (tmp_path / "noise.py").write_text(REWARD)
    (tmp_path / "steps.py").write_text(STEPS)
    if not (teacher := tmp_path / "teacher").exists():
        new_model(teacher, seed=1)
    function = {"type": f"{tmp_path}/noise.py:reward", "sandbox": None}
    base: dict[str, Any] = {
        "model": {"path": str(tiny_model), "dtype": "float32"},
        "data": {"train": str(coloured / "rl.jsonl"), "train_batch_size": 4},
        "rollout": {"engine": "hf", "n": 4, "max_response_length": 48},
        "rewards": {"noise": function},
        "scoring": {"workers": 1},
        "algorithm": {"kl": {"coef": 0.1}, "ppo_mini_batch_size": 2},
        "optimizer": {"lr": 1e-3, "weight_decay": 0.01, "scheduler": {"warmup_steps": 4}},
        "trainer": {"max_steps": 1, "threads": 1},
    }

    def train(*overrides: str, name: str = "run") -> Path:
        config, folder = tmp_path / "run.yaml", tmp_path / name
        overrides = tuple(each.format(here=tmp_path) for each in overrides)
        config.write_text(yaml.safe_dump(base))
        code, _, error = mmr1("train", config, f"trainer.output_dir={folder}", *overrides)
        assert code == 0, error
        return folder

    return train
