"""Generators: datasets that ``mmr1-data make`` creates; one file each."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from mmr1.registry import Registry
from mmr1.types import Sample


@dataclass(frozen=True)
class Generator:
    """A generator of one dataset.

    Attributes:
        name: Its name in ``mmr1-data make``.
        description: One line for ``mmr1-data list``.
        source: Where its raw material comes from.
        licence: The licence of that material.
        build: ``(folder, seed) -> samples of each split``. Writes the media under the folder; equal
            seeds give equal bytes.
    """

    name: str
    description: str
    source: str
    licence: str
    build: Callable[[Path, int], Mapping[str, Sequence[Sample]]]


GENERATORS = Registry(
    "dataset to make",
    {
        "calculate": "datasets_prep.generators.calculate:CALCULATE",
        "counting": "datasets_prep.generators.counting:COUNTING",
        "digit-sums": "datasets_prep.generators.digit_sums:DIGIT_SUMS",
        "digits": "datasets_prep.generators.digits:DIGITS",
        "frame": "datasets_prep.generators.frame:FRAME",
        "grounding": "datasets_prep.generators.grounding:GROUNDING",
        "video": "datasets_prep.generators.video:VIDEO",
        "zoom": "datasets_prep.generators.zoom:ZOOM",
    },
)
