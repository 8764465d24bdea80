"""Benchmarks by name: how each scores an answer, and how it is asked.

The records come from ``mmr1-data convert`` with the converter named in :attr:`Preset.converter`. A
preset replaces the rewards and the prompt of the configuration; scoring is by rule, also where a
benchmark's own script asks another model to read the answer.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from mmr1.config import Config

RIGHT = (1.0,)


@dataclass(frozen=True, slots=True)
class Preset:
    """One benchmark.

    Attributes:
        says: What it measures, and how its own scoring is followed.
        converter: Of ``mmr1-data convert``.
        reward: The built-in that scores an answer.
        options: Of that reward.
        accuracy_thresholds: Its values from which an answer is right; empty: the value itself.
        group_by: Record key that results are broken down by.
        template: Prompt with reasoning; without it is ``direct``.
    """

    says: str
    converter: str
    reward: str
    options: Mapping[str, Any] = field(default_factory=dict)
    accuracy_thresholds: tuple[float, ...] = RIGHT
    group_by: str | None = None
    template: str = "think_answer"


PRESETS = {
    "mathvista": Preset(
        "MathVista testmini: the option, the integer, or the number rounded to the row's precision",
        "mathvista", "auto", group_by="question_type",
    ),
    "mathverse": Preset(
        "MathVerse testmini: the option or an equal value, by version of the problem",
        "mathverse", "auto", group_by="problem_version",
    ),
    "math_vision": Preset(
        "MATH-Vision: the option or an equal value, by level",
        "math_vision", "auto", group_by="level"
    ),
    "superclevr": Preset(
        "SuperCLEVR counting as R1-V evaluates it: the exact count",
        "superclevr_eval", "count", template="r1_v",
    ),
    "geoqa": Preset(
        "GeoQA as R1-V evaluates it: an equal value", "geoqa_eval", "math", template="r1_v"
    ),
    "geometry3k": Preset(
        "Geometry3K as EasyR1 and verl evaluate it: an equal value, boxed",
        "geometry3k_hub", "math", template="easyr1",
    ),
    "refcoco": Preset(
        "RefCOCO/+/g: IoU of at least 0.5; boxes in pixels of the image as Qwen2.5-VL sees it",
        "refcoco", "iou", {"space": "resized"}, (0.5,), template="grounding",
    ),
    "charades_sta": Preset(
        "Charades-STA: R@1 at temporal IoU 0.5, also 0.3 and 0.7; its mean is the mIoU",
        "charades_sta", "tiou", accuracy_thresholds=(0.5, 0.3, 0.7), template="video",
    ),
    "vsi_bench": Preset(
        "VSI-Bench: the option, or for numbers the mean relative accuracy, by type of question",
        "video_r1", "auto", {"regression": {"mean_relative": True}}, (),
        group_by="original_question_type", template="video_r1",
    ),
}  # fmt: skip


def with_preset(config: Config, name: str, prompt: Literal["reason", "direct"] | None) -> Config:
    """The configuration that evaluates as the benchmark ``name`` does; unchanged for other names.

    Args:
        config: Of the evaluation.
        name: A benchmark of :data:`PRESETS`, or any name of a dataset.
        prompt: ``reason``, ``direct``, or None for the configuration's own template; a preset
            takes None as ``reason``.
    """
    preset = PRESETS.get(name)
    tree = config.model_dump()
    if prompt is not None or preset is not None:
        reasoning = preset.template if preset else "think_answer"
        tree["data"]["prompt_template"] = "direct" if prompt == "direct" else reasoning
    if preset is not None:
        tree["algorithm"] = {}  # none is at work, and the run's may insist on rewards of its own
        tree["rewards"]["functions"] = {
            "format": {"weight": 0.0},
            preset.reward: {"options": dict(preset.options)},
        }
        tree["eval"].update(
            accuracy_function=preset.reward,
            accuracy_thresholds=list(preset.accuracy_thresholds),
            group_by=preset.group_by,
        )
    return Config.model_validate(tree)
