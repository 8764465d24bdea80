"""From a sample to the prompt that a model is given."""

from __future__ import annotations

from functools import partial
from typing import Any

from mmr1.config import Config
from mmr1.types import Prompt, Sample
from mmr1.vision.families.qwen2_5_vl import Family, render_prompt


def renderer(family: Family, config: Config) -> Any:
    """``Sample -> Prompt`` for this model and configuration."""
    return partial(_render, family, config.data.system_prompt)


def _render(family: Family, system_prompt: str | None, sample: Sample) -> Prompt:
    return render_prompt(family, sample, system_prompt)
