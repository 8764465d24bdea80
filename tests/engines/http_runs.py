"""Runs with an engine behind a server: their configuration, files and metrics."""

from __future__ import annotations

from pathlib import Path

from mmr1.config import Config
from tests.jsonl import read_jsonl

ENGINE = f"{Path(__file__).parent / 'http_engine.py'}:HttpEngine"


def config(path: Path, files: Path, out: Path, **sections: dict) -> Config:
    tree: dict[str, dict] = {
        "model": {"path": str(path), "dtype": "float32"},
        "data": {"train": str(files / "rl.jsonl"), "train_batch_size": 2, "num_workers": 0},
        "rollout": {
            "engine": ENGINE,
            "n": 2,
            "max_prompt_length": 120,
            "max_response_length": 8,
        },
        "rewards": {"length": {"type": f"{files}/length.py:reward"}},
        "optimizer": {"lr": 1e-3, "scheduler": {"warmup_steps": 0}},
        "trainer": {
            "max_steps": 3,
            "output_dir": str(out),
            "log_completions_steps": 1,
            "threads": 1,
        },
    }
    for name, keys in sections.items():
        tree[name] = {**tree.get(name, {}), **keys}
    return Config.model_validate(tree)


def metrics(run: Path) -> list[dict[str, float]]:
    rows = read_jsonl(run / "metrics.jsonl")
    return [{k: v for k, v in row.items() if not k.startswith("time/")} for row in rows]
