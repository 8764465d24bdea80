"""Small models with random weights: the real classes of a family, sized for a CPU."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from mmr1.vision.families.loading import architecture_named
from mmr1.vision.families.registry import DEFAULT_FAMILY, SHORT_NAMES


def new_model(
    output: Path,
    preset: str = "tiny",
    seed: int = 0,
    corpus: Sequence[str] | None = None,
    family: str = DEFAULT_FAMILY,
) -> int:
    """Write a model directory with random weights and return its number of parameters.

    Args:
        corpus: Texts that the tokenizer learns its merges from; None for the family's own.

    Raises:
        ValueError: The family or the preset is unknown, or ``output`` holds something already.
    """
    architecture = architecture_named(SHORT_NAMES.get(family, family))
    if not architecture.presets:
        raise ValueError(f"family '{family}' has no small models; name one of docs/models.md")
    if preset not in architecture.presets:
        raise ValueError(f"unknown preset '{preset}'; known: {', '.join(architecture.presets)}")
    if output.exists() and any(output.iterdir()):
        raise ValueError(f"{output} is not empty; name a new directory or remove it")
    return architecture.new_model(output, preset, seed, corpus)
