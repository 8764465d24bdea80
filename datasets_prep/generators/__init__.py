"""Datasets that are made rather than converted; one file each."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from mmr1.registry import Registry
from mmr1.types import Sample


@dataclass(frozen=True)
class Generator:
    """How to make one dataset.

    Attributes:
        name: What ``mmr1-data make`` calls it.
        description: One line for ``mmr1-data list``.
        source: Where its raw material comes from.
        licence: Of that material.
        build: ``(folder, seed)`` to the samples of each split, media written under the folder.
            The same seed gives the same bytes.
    """

    name: str
    description: str
    source: str
    licence: str
    build: Callable[[Path, int], Mapping[str, Sequence[Sample]]]


GENERATORS = Registry(
    "dataset to make",
    {
        "counting": "datasets_prep.generators.counting:COUNTING",
        "digit-sums": "datasets_prep.generators.digit_sums:DIGIT_SUMS",
        "digits": "datasets_prep.generators.digits:DIGITS",
        "grounding": "datasets_prep.generators.grounding:GROUNDING",
        "video": "datasets_prep.generators.video:VIDEO",
    },
)
