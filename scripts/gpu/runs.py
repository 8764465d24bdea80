"""Checks of whole runs: the quickstart, a recipe, colocation, adapters, FP8, and TRL beside."""

from __future__ import annotations

import json
import math
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from datasets_prep.generators import make
from mmr1.config import Config
from mmr1.config.checks import check
from mmr1.config.file import load_config
from mmr1.estimate.load import Load
from mmr1.estimate.memory import estimate
from mmr1.trainer.distributed.colocation import Colocation
from mmr1.trainer.train import run_training
from mmr1.vision.families.tiny import new_model
from scripts.gpu import models
from scripts.gpu.figures import Figures, Setting, SkippedError, has, within

GIB = 2**30
ROOT = Path(__file__).parents[2]
RECIPES = ROOT / "scripts/recipes"
VLLM = {"type": "vllm", "gpu_memory_utilization": 0.2}
GAP = "rollout/logprob_diff_mean"


def quickstart(setting: Setting) -> Figures:
    """Three steps of the quickstart's RL as it is shipped, on its model before SFT."""
    _need("vllm")
    _make_task(setting.folder)
    rows = _recipe(setting, "quickstart/rl.yaml", "run", 3, _digits(setting))
    return within(_figures(rows), {"log-prob gap to the engine, nats": 0.01})


def recipe(setting: Setting) -> Figures:
    """The recipe of 3B on a random checkpoint on disk: three steps, and a fourth after a resume."""
    _need("vllm")
    folder = setting.folder
    _make_task(folder)
    path = _checkpoint(setting)
    changes = [
        *_digits(setting, path),
        "resources.auto=false",
        f"data.train_batch_size={8 if setting.on_gpu else 4}",
        f"rollout.max_response_length={512 if setting.on_gpu else 8}",
        "rollout.max_prompt_length=512",
        "algorithm.entropy={coef: 0.01}",
        "trainer.checkpoints.save_steps=3",
    ]
    if setting.on_gpu:
        torch.cuda.reset_peak_memory_stats()
    else:
        changes += ["rollout.n=4", "model.dtype=float32", "optimizer.state_dtype=float32"]
    rows = _recipe(setting, "qwen2_5_vl_3b/grpo.yaml", "run", 3, changes)
    figures = _figures(rows)
    rows = _recipe(setting, "qwen2_5_vl_3b/grpo.yaml", "run", 4, changes, resume=True)
    figures["steps after the resume"] = len(rows) - 3
    if setting.on_gpu:
        config = load_config(RECIPES / "qwen2_5_vl_3b/grpo.yaml", changes)
        expected = estimate(config, Load(512, 64, 512)).total("trainer") / GIB
        figures["peak, GiB"] = torch.cuda.max_memory_allocated() / GIB
        figures["estimate, GiB"] = expected
        figures["cache left, GiB"] = torch.cuda.mem_get_info()[0] / GIB
    return within(figures, {"log-prob gap to the engine, nats": 0.1})


def colocated(setting: Setting) -> Figures:
    """A rank and an engine on one GPU, with and without offloading: parity after each waking.

    A run of three steps wakes the engine for its two checks at the start and once a step.
    """
    _need("vllm", "ray")
    figures: Figures = {}
    bounds: dict[str, float] = {}
    for offload in (False, True):
        engine = {
            "type": "vllm",
            "colocate": True,
            "gpu_memory_utilization": 0.3,
            "offload_trainer": offload,
        }
        name = "offloaded" if offload else "on the GPU"
        with _memory_asleep(setting) as asleep:
            rows = _training(setting, name, rollout={"engine": engine})
        if asleep:
            figures[f"{name}: used while the engine sleeps, GiB"] = max(asleep)
        for key, value in _figures(rows).items():
            figures[f"{name}: {key}"] = value
        bounds[f"{name}: log-prob gap to the engine, nats"] = 0.1
        if setting.on_gpu:
            figures[f"{name}: free afterwards, GiB"] = torch.cuda.mem_get_info()[0] / GIB
    return within(figures, bounds)


@contextmanager
def _memory_asleep(setting: Setting) -> Iterator[list[float]]:
    """GiB of the GPU that are used when ranks get their turn; of a small model: the engine's."""
    used: list[float] = []
    learn = Colocation.learn

    def measured(turns: Colocation) -> None:
        learn(turns)
        if setting.on_gpu:
            free, total = torch.cuda.mem_get_info()
            used.append((total - free) / GIB)

    Colocation.learn = measured  # type: ignore[method-assign]
    try:
        yield used
    finally:
        Colocation.learn = learn  # type: ignore[method-assign]


def wide(setting: Setting) -> Figures:
    """An engine of two GPUs that share them with two ranks: parity after each waking."""
    engine = {
        "type": "vllm",
        "colocate": True,
        "tensor_parallel_size": 2,
        "gpu_memory_utilization": 0.3,
    }
    config = _config(setting, "wide", rollout={"engine": engine}, resources={"ranks": 2})
    if not setting.on_gpu or torch.cuda.device_count() < 2:
        raise SkippedError("it takes two GPUs")
    _need("vllm", "ray")
    return within(_figures(_trained(config)), {"log-prob gap to the engine, nats": 0.1})


def transformers_engine(setting: Setting) -> Figures:
    """Three steps of GRPO with the engine of transformers, which needs no other package."""
    rows = _training(setting, "transformers", rollout={"engine": "hf"})
    return within(_figures(rows), {"log-prob gap to the engine, nats": 0.1})


def adapters(setting: Setting) -> Figures:
    """LoRA, merged for the engine and as adapters that vLLM adds: the gap to the trainer."""
    _need("vllm")
    figures: Figures = {}
    for merge in (True, False):
        name = "merged" if merge else "as adapters"
        model = {"lora": {"rank": 8, "merge": merge}, "freeze_vision_tower": True}
        rows = _training(setting, name, model=model, rollout={"engine": VLLM})
        figures[f"{name}: gap, nats"] = max(row[GAP] for row in rows)
    return within(figures, dict.fromkeys(figures, 0.1))


def fp8(setting: Setting) -> Figures:
    """Rollouts in FP8, whose gap importance weights correct: the gap and the weights."""
    config = _config(
        setting,
        "fp8",
        rollout={
            "engine": {**VLLM, "engine_kwargs": {"quantization": "fp8"}},
            "parity_tolerance": 1.0,
        },
        algorithm={"rollout_correction": {"importance_sampling": {"level": "token"}}},
    )
    if not setting.on_gpu:
        raise SkippedError("a CPU has no FP8 kernels")
    _need("vllm")
    rows = _trained(config)
    weights = {key: value for key, value in rows[-1].items() if "importance" in key}
    return within({**_figures(rows), **weights}, {"log-prob gap to the engine, nats": 0.5})


def against_trl(setting: Setting) -> Figures:
    """The same step by TRL's trainer, of an interpreter that has it (``TRL_PYTHON``)."""
    python = os.environ.get("TRL_PYTHON")
    if python is None:
        raise SkippedError(
            "TRL_PYTHON names no interpreter with TRL (scripts/bench/against_trl.py)"
        )
    output = setting.folder / "trl"
    command = [
        *(sys.executable, "scripts/bench/against_trl.py", "--trl-python", python),
        *("--device", setting.device, "--shape", "20m" if setting.on_gpu else "tiny"),
        *("--output", str(output)),
    ]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(done.stderr.strip().splitlines()[-1])
    return {"said": done.stdout.strip().splitlines()[-1], "written": str(output)}


def ranks(setting: Setting) -> Figures:
    """Run as many ranks as there are GPUs beside one engine; on a CPU two."""
    gpus = torch.cuda.device_count() if setting.on_gpu else 3
    if gpus < 2:
        raise SkippedError("it takes two GPUs")
    _need("ray")
    engine = {"engine": VLLM if setting.on_gpu and has("vllm") else "hf"}
    rows = _training(setting, "ranks", rollout=engine, resources={"ranks": gpus - 1, "engines": 1})
    return within(_figures(rows), {"log-prob gap to the engine, nats": 0.1})


def _need(*packages: str) -> None:
    for package in packages:
        if not has(package):
            raise SkippedError(f"{package} is not installed")


def _figures(rows: Sequence[dict[str, Any]]) -> Figures:
    """Figures of the last step, which no longer compiles."""
    for row in rows:
        assert all(math.isfinite(v) for v in row.values() if isinstance(v, float)), row
    last = rows[-1]
    named = {"step, s": "time/step", "rollouts, s": "time/rollout", "weights, s": "time/sync"}
    figures: Figures = {name: last[key] for name, key in named.items() if key in last}
    if "tokens/total" in last:
        figures["tokens/s"] = last["tokens/total"] / last["time/step"]
    figures["log-prob gap to the engine, nats"] = max(row[GAP] for row in rows)
    return figures


def _make_task(folder: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    new_model(folder / "model")
    make("digits", folder / "data", 0)


def _checkpoint(setting: Setting) -> Path:
    """A random model on disk with the small models' processor: of 3B on a GPU."""
    if not setting.on_gpu:
        return setting.folder / "model"
    model, family = models.common.new_model("3b", "cpu")
    path = setting.folder / "3b"
    model.save_pretrained(path)
    family.processor.save_pretrained(path)
    return path


def _digits(setting: Setting, model: Path | None = None) -> list[str]:
    """The digits in place of a recipe's model and data."""
    folder = setting.folder
    return [
        f"model.path={model or folder / 'model'}",
        f"data.train={folder}/data/rl.jsonl",
        "trainer.validation=null",
    ]


def _recipe(
    setting: Setting, file: str, name: str, steps: int, changes: list[str], resume: bool = False
) -> list[dict[str, Any]]:
    out = setting.folder / name
    own = [f"trainer.output_dir={out}", f"trainer.max_steps={steps}", "trainer.logging_steps=1000"]
    os.chdir(ROOT)  # recipes name files from there
    run_training(load_config(RECIPES / file, [*changes, *own]), resume=resume)
    return _rows(out)


def _training(setting: Setting, name: str, **sections: dict[str, Any]) -> list[dict[str, Any]]:
    return _trained(_config(setting, name, **sections))


def _trained(config: Config) -> list[dict[str, Any]]:
    """The rows of ``metrics.jsonl``."""
    run_training(config)
    return _rows(Path(config.trainer.output_dir))


def _config(setting: Setting, name: str, **sections: dict[str, Any]) -> Config:
    """Three steps of the digits task from random weights, with the task made.

    Raises:
        ValueError: The sections are no configuration. Checks that a CPU cannot run ask for it too.
    """
    folder = setting.folder / name.replace(" ", "_")
    _make_task(folder)
    config: dict[str, Any] = {
        "model": {
            "path": str(folder / "model"),
            "dtype": "bfloat16" if setting.on_gpu else "float32",
        },
        "data": {"train": str(folder / "data/rl.jsonl"), "train_batch_size": 4},
        "rollout": {
            "engine": "hf",
            "n": 4,
            "max_prompt_length": 120,
            "max_response_length": 8,
        },
        "rewards": {"format": {"weight": 0.5}, "math": {"weight": 1.0}},
        "algorithm": {"entropy": {"coef": 0.01}},  # a random model has no signal
        "optimizer": {"lr": 1e-3, "scheduler": {"type": "constant", "warmup_steps": 0}},
        "trainer": {
            "max_steps": 3,
            "output_dir": str(folder / "run"),
            "threads": None if setting.on_gpu else 1,
            "logging_steps": 100,
        },
    }
    for section, keys in sections.items():
        config[section] = {**config.get(section, {}), **keys}
    made = Config.model_validate(config)
    check(made)
    return made


def _rows(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
