"""Short runs on records, on Ray or in one process, and a cluster for them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from mmr1.config import Config
from tests.jsonl import read_jsonl


@contextmanager
def ray_of_this_machine() -> Iterator[None]:
    """A cluster of this machine's CPUs."""
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


def answered(mixed: Path) -> Path:
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
