"""Checks of whole runs of the digits task, on a small model with random weights."""

from __future__ import annotations

import importlib.util
import json
import math
import shutil
import time
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file

from datasets_prep.make import make
from mmr1.config import Config
from mmr1.rollout.shared_weights import share_weights
from mmr1.trainer.train import run_training
from mmr1.vision.families.tiny import new_model
from scripts.gpu.figures import Figures, SkippedError, within

GIB = 2**30
VLLM = {"type": "vllm", "gpu_memory_utilization": 0.2}


def training_hf(device: str, folder: Path) -> Figures:
    return _training(folder, device, rollout={"engine": "hf"})


def training_vllm(device: str, folder: Path) -> Figures:
    if device == "cpu":
        raise SkippedError("on a CPU the tests do it")
    if not _has_vllm():
        raise SkippedError("vLLM is not installed")
    return _training(folder, device, rollout={"engine": VLLM})


def _has_vllm() -> bool:
    return importlib.util.find_spec("vllm") is not None


def ranks(device: str, folder: Path) -> Figures:
    """As many ranks as there are GPUs beside one engine; the same learning rate, other sums."""
    gpus = torch.cuda.device_count() if device != "cpu" else 0
    if gpus < 2:
        raise SkippedError("it takes two GPUs")
    engine = {"engine": VLLM if _has_vllm() else "hf"}
    return _training(folder, device, rollout=engine, resources={"ranks": gpus - 1, "engines": 1})


def _training(folder: Path, device: str, **sections: dict[str, Any]) -> Figures:
    start = time.perf_counter()
    _make_task(folder)
    rows = _run(folder, "run", steps=3, device=device, **sections)
    figures: Figures = {
        "steps": len(rows),
        "whole run, s": time.perf_counter() - start,
        "last step, s": rows[-1]["time/step"],
        "of it rollouts, s": rows[-1]["time/rollout"],
        "log-prob gap to the engine, nats": max(row["rollout/logprob_gap"] for row in rows),
    }
    for row in rows:
        assert all(math.isfinite(v) for v in row.values() if isinstance(v, float)), row
    return within(figures, {"log-prob gap to the engine, nats": 0.1})


def resume(device: str, folder: Path) -> Figures:
    """Two steps, then two more after a resume, against four at once: the largest difference."""
    start = time.perf_counter()
    _make_task(folder)
    _run(folder, "whole", steps=4, device=device)
    _run(folder, "cut", steps=2, device=device)
    _run(folder, "cut", steps=4, device=device, resume=True)
    weights = [
        load_file(folder / name / "checkpoints/step_000004/model.safetensors")
        for name in ("whole", "cut")
    ]
    apart = max(
        float((weights[0][name].float() - weights[1][name].float()).abs().max())
        for name in weights[0]
    )
    figures: Figures = {"largest difference": apart, "s": time.perf_counter() - start}
    # Flash attention's backward pass adds up in any order; an optimizer step is 1e-3 long.
    return within(figures, {"largest difference": 0.0 if device == "cpu" else 4e-3})


def weight_sync(device: str, folder: Path) -> Figures:
    """From the trainer's device into shared memory, the first time and every other time."""
    count, size = (64, 2**23) if device != "cpu" else (8, 2**20)
    weights = {
        f"weight_{i}": torch.full((size,), float(i), dtype=torch.bfloat16, device=device)
        for i in range(count)
    }
    gib = 2 * count * size / GIB
    start = time.perf_counter()
    shared = share_weights(weights)
    made = time.perf_counter()
    shared.write(weights)
    again = time.perf_counter()
    for i, tensor in enumerate(shared.tensors().values()):
        assert tensor[0] == tensor[-1] == i
    return {"GiB": gib, "first, s/GiB": (made - start) / gib, "s/GiB": (again - made) / gib}


def _make_task(folder: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    new_model(folder / "model")
    make("digits", folder / "data", 0)


def _run(
    folder: Path, name: str, steps: int, device: str, resume: bool = False, **sections: Any
) -> list[dict[str, Any]]:
    """Train into ``folder/name``; the rows of ``metrics.jsonl``."""
    config = {
        "model": {"path": str(folder / "model"), "dtype": "float32"},
        "data": {"train": str(folder / "data/rl.jsonl"), "train_batch_size": 4},
        "rollout": {
            "engine": "hf",
            "n": 4,
            "max_prompt_length": 120,
            "max_response_length": 8,
        },
        "rewards": {"functions": {"format": {"weight": 0.5}, "math": {"weight": 1.0}}},
        "algorithm": {"entropy": {"coef": 0.01}},  # a random model has no signal
        "optimizer": {"lr": 1e-3, "scheduler": {"type": "constant", "warmup_steps": 0}},
        "trainer": {
            "max_steps": steps,
            "output_dir": str(folder / name),
            "threads": 1 if device == "cpu" else None,
            "logging_steps": 100,
        },
    }
    if device != "cpu":
        config["model"]["dtype"] = "bfloat16"
    for section, keys in sections.items():
        config[section] = {**config.get(section, {}), **keys}
    run_training(Config.model_validate(config), resume=resume)
    lines = (folder / name / "metrics.jsonl").read_text().splitlines()
    return [json.loads(line) for line in lines]
