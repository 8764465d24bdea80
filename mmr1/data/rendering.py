"""Render samples as the prompts of a model."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial
from pathlib import Path

from mmr1.config import Config
from mmr1.data.constants import constant
from mmr1.types import Prompt, Sample
from mmr1.vision.families.family import ModelFamily


def renderer(family: ModelFamily, config: Config) -> Callable[[Sample], Prompt]:
    """``Sample -> Prompt`` for this model and configuration."""
    return partial(family.render_prompt, system_prompt=system_prompt(config))


def system_prompt(config: Config) -> str | None:
    """The text of ``data.system_prompt``, which a file of another project may hold.

    Raises:
        ValueError: The file has no such text.
    """
    given = config.data.system_prompt
    named = re.fullmatch(r"(\S.*\.py):([\w.]+)", given or "")
    if named is None:
        return given
    text = constant(Path(named[1]).expanduser(), named[2])
    if not isinstance(text, str):
        raise ValueError(
            f"data.system_prompt '{given}': it has a text for each of several cases; copy the one "
            "that is meant"
        )
    return text
