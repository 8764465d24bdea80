"""Benchmarks by name: the reward function and the prompt template of each.

``presets.yaml`` lists them. The records come from ``mmr1-data convert`` with
:attr:`Preset.converter`. A preset replaces the rewards and the prompt template of the
configuration. Scoring is always by rule, even if the benchmark's own script uses a language model
to read the answer.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from mmr1.config import Config

RIGHT = (1.0,)


@dataclass(frozen=True, slots=True)
class Preset:
    """One benchmark.

    Attributes:
        description: Ability that it measures, and how its own scoring is followed.
        converter: The converter, or the format of its rows, for ``mmr1-data convert``.
        reward: The built-in reward function that scores an answer.
        options: Settings of that function.
        accuracy_thresholds: An answer is right from these values on; empty for the value itself.
        group_by: Record key by which results are also reported.
        template: Prompt template for answers with reasoning; ``direct`` is the one without.
    """

    description: str
    converter: str
    reward: str
    options: Mapping[str, Any] = field(default_factory=dict)
    accuracy_thresholds: Sequence[float] = RIGHT
    group_by: str | None = None
    template: str = "think_answer"


PRESETS = {
    name: Preset(**keys)
    for name, keys in yaml.safe_load(Path(__file__).with_suffix(".yaml").read_text()).items()
}


def with_preset(config: Config, name: str, prompt: str | None) -> Config:
    """The configuration with the preset of benchmark ``name``; unchanged for other names.

    Args:
        config: The configuration of the evaluation.
        name: A benchmark of :data:`PRESETS`, or the name of any dataset.
        prompt: ``reason``, ``direct``, another template, or None for the configuration's own.
            With a preset None means ``reason``.
    """
    preset = PRESETS.get(name)
    values: dict[str, Any] = {}
    if prompt is not None or preset is not None:
        reasoning = preset.template if preset else "think_answer"
        values["data.prompt_template"] = reasoning if prompt in (None, "reason") else prompt
    if preset is not None:
        picks = {  # eval.sampled.best_of may name one of the run's own
            name: function.changed(weight=0.0)
            for name, function in config.rewards.items()
            if name == config.eval.best_of
        }
        values |= {
            "rewards": {
                "format": {"weight": 0.0},
                **picks,
                preset.reward: dict(preset.options),
            },
            "eval.accuracy_function": preset.reward,
            "eval.accuracy_thresholds": tuple(preset.accuracy_thresholds),
            "eval.group_by": preset.group_by,
        }
    return config.changed(values)
