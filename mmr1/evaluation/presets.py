"""Benchmarks by name: the reward function and the prompt template of each.

The records come from ``mmr1-data convert`` with :attr:`Preset.converter`. A preset replaces the
rewards and the prompt template of the configuration. Scoring is always by rule, even if the
benchmark's own script uses a language model to read the answer.
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
        description: What it measures, and how its own scoring is followed.
        converter: The converter of ``mmr1-data convert``.
        reward: The built-in reward function that scores an answer.
        options: Options of that function.
        accuracy_thresholds: An answer is right from these values on; empty for the value itself.
        group_by: Record key by which results are also reported.
        template: Prompt template for answers with reasoning; ``direct`` is the one without.
    """

    description: str
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
    """The configuration with the preset of benchmark ``name``; unchanged for other names.

    Args:
        config: The configuration of the evaluation.
        name: A benchmark of :data:`PRESETS`, or the name of any dataset.
        prompt: ``reason``, ``direct``, or None for the configuration's own template. With a preset
            None means ``reason``.
    """
    preset = PRESETS.get(name)
    values: dict[str, Any] = {}
    if prompt is not None or preset is not None:
        reasoning = preset.template if preset else "think_answer"
        values["data.prompt_template"] = "direct" if prompt == "direct" else reasoning
    if preset is not None:
        picks = {  # eval.sampled.best_of may name one of the run's own
            name: function.changed(weight=0.0)
            for name, function in config.rewards.functions.items()
            if name == config.eval.best_of
        }
        values |= {
            "rewards.functions": {
                "format": {"weight": 0.0},
                **picks,
                preset.reward: {"options": dict(preset.options)},
            },
            "eval.accuracy_function": preset.reward,
            "eval.accuracy_thresholds": preset.accuracy_thresholds,
            "eval.group_by": preset.group_by,
        }
    return config.changed(values)
