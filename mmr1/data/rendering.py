"""From a sample to the prompt that a model is given."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from mmr1.config import Config
from mmr1.types import Prompt, Sample
from mmr1.vision.families.family import ModelFamily


def renderer(family: ModelFamily, config: Config) -> Callable[[Sample], Prompt]:
    """``Sample -> Prompt`` for this model and configuration."""
    return partial(family.render_prompt, system_prompt=config.data.system_prompt)
