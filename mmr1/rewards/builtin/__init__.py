"""The built-in reward functions by name, the checks of their golds, and the tasks of ``auto``."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from functools import cache, lru_cache
from typing import Any

from mmr1.registry import Registry

REWARDS = Registry(
    "reward function",
    {
        "anls": "mmr1.rewards.builtin.text:anls",
        "auto": "mmr1.rewards.functions:AutoReward",
        "choice": "mmr1.rewards.builtin.choice:choice",
        "count": "mmr1.rewards.builtin.numeric:count",
        "environment": "mmr1.rewards.builtin.shaping:environment",
        "exact": "mmr1.rewards.builtin.text:exact",
        "format": "mmr1.rewards.builtin.shaping:format",
        "iou": "mmr1.rewards.builtin.iou:iou",
        "judge": "mmr1.rewards.judges.judge:JudgeReward",
        "length_bonus": "mmr1.rewards.builtin.shaping:length_bonus",
        "length_cosine": "mmr1.rewards.builtin.shaping:length_cosine",
        "math": "mmr1.rewards.builtin.math:math",
        "numeric": "mmr1.rewards.builtin.numeric:numeric",
        "ocr": "mmr1.rewards.builtin.text:ocr",
        "overlong": "mmr1.rewards.builtin.shaping:overlong",
        "regression": "mmr1.rewards.builtin.numeric:regression",
        "relaxed": "mmr1.rewards.builtin.text:relaxed",
        "repetition": "mmr1.rewards.builtin.shaping:repetition",
        "rouge": "mmr1.rewards.builtin.text:rouge",
        "steps": "mmr1.rewards.builtin.shaping:steps",
        "temporal_contrast": "mmr1.rewards.builtin.temporal:temporal_contrast",
        "tiou": "mmr1.rewards.builtin.temporal:tiou",
        "tool_use": "mmr1.rewards.builtin.shaping:tool_use",
        "vqa_soft": "mmr1.rewards.builtin.text:vqa_soft",
    },
    group="mmr1.rewards",
)

REWARD_MODEL = "reward_model"
"""The ``use`` of a reward model, which is loaded where torch is."""

PYTHON = "python"
"""The ``use`` of a function that ``mmr1.Trainer`` was given, which no file names."""

# Readers of gold answers, which check them at load: they raise BadGoldError, or return a Job for
# the sandbox.
GOLD_CHECKS = {
    "anls": "mmr1.rewards.builtin.text:gold_strings",
    "choice": "mmr1.rewards.builtin.choice:gold_letter",
    "count": "mmr1.rewards.builtin.numeric:gold_quantities",
    "exact": "mmr1.rewards.builtin.text:gold_strings",
    "iou": "mmr1.rewards.builtin.iou:gold_boxes",
    "math": "mmr1.rewards.builtin.math:math_gold",
    "numeric": "mmr1.rewards.builtin.numeric:gold_quantities",
    "ocr": "mmr1.rewards.builtin.text:gold_strings",
    "regression": "mmr1.rewards.builtin.numeric:gold_quantities",
    "relaxed": "mmr1.rewards.builtin.text:gold_strings",
    "rouge": "mmr1.rewards.builtin.text:gold_strings",
    "steps": "mmr1.rewards.builtin.shaping:steps_gold",
    "tiou": "mmr1.rewards.builtin.temporal:gold_segment",
    "vqa_soft": "mmr1.rewards.builtin.text:gold_votes",
}

# Built-ins that need the accuracy of another reward function; their option ``of`` names it.
DERIVED = ("length_bonus", "length_cosine", "temporal_contrast")

# Task types (of our converters and of other projects' records) to their reward function.
TASKS = {
    "math": "math",
    "choice": "choice",
    "multiple choice": "choice",
    "mcq": "choice",
    "count": "count",
    "counting": "count",
    "numeric": "numeric",
    "numerical": "numeric",
    "regression": "regression",
    "iou": "iou",
    "rec": "iou",
    "grounding": "iou",
    "detection": "iou",
    "tiou": "tiou",
    "temporal grounding": "tiou",
    "ocr": "ocr",
    "rouge": "rouge",
    "free-form": "rouge",
    "text": "exact",
    "exact": "exact",
    "anls": "anls",
    "vqa soft": "vqa_soft",
    "relaxed": "relaxed",
}


@cache
def gold_check(name: str) -> Callable[..., Any] | None:
    """The function that checks a built-in's gold answers, or None."""
    if name not in GOLD_CHECKS:
        return None
    module, _, attribute = GOLD_CHECKS[name].partition(":")
    check: Callable[..., Any] = getattr(importlib.import_module(module), attribute)
    return check


_OF_PLAIN = {task_type.replace("-", " "): name for task_type, name in TASKS.items()}


@lru_cache(maxsize=1 << 10)
def reward_of_task(task: str | None) -> str | None:
    """The built-in for a task type, or None; case, ``-`` and ``_`` do not matter."""
    if task is None:
        return None
    plain = task.lower().replace("_", " ").replace("-", " ").strip()
    return _OF_PLAIN.get(plain)
