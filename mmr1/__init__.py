"""R1-style reasoning RL for vision-language models.

    from mmr1 import Trainer

    Trainer(model="Qwen/Qwen2.5-VL-3B-Instruct", data="records.jsonl").train()

These names are stable, and are loaded when they are first used: ``import mmr1`` loads no torch.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mmr1.config import Config
    from mmr1.config.file import load_config
    from mmr1.python.trainer import Trainer, evaluate
    from mmr1.rewards.reading.extract import extract_answer
    from mmr1.rewards.reading.read import read_answer
    from mmr1.rollout.protocol import Finished, Probe, Request
    from mmr1.trainer.runs.step import Step, StoppedError
    from mmr1.trainer.validation.evaluate import Evaluation
    from mmr1.types import Completion, RolloutGroup

__version__ = "0.1.0"
__all__ = [
    "Completion",
    "Config",
    "Evaluation",
    "Finished",
    "Probe",
    "Request",
    "RolloutGroup",
    "Step",
    "StoppedError",
    "Trainer",
    "evaluate",
    "extract_answer",
    "load_config",
    "read_answer",
]
_HOME = {
    "Completion": "mmr1.types",
    "Config": "mmr1.config",
    "Evaluation": "mmr1.trainer.validation.evaluate",
    "Finished": "mmr1.rollout.protocol",
    "Probe": "mmr1.rollout.protocol",
    "Request": "mmr1.rollout.protocol",
    "RolloutGroup": "mmr1.types",
    "Step": "mmr1.trainer.runs.step",
    "StoppedError": "mmr1.trainer.runs.step",
    "Trainer": "mmr1.python.trainer",
    "evaluate": "mmr1.python.trainer",
    "extract_answer": "mmr1.rewards.reading.extract",
    "load_config": "mmr1.config.file",
    "read_answer": "mmr1.rewards.reading.read",
}


def __getattr__(name: str) -> Any:
    if name in _HOME:
        return getattr(importlib.import_module(_HOME[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*__all__, "__version__"])
