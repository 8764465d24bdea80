"""Tasks from the scans of a start, without held-out scans in other splits."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import cast

from PIL import Image

from datasets_prep.generators.common import WORDS as WORDS
from datasets_prep.generators.common import ask, demonstrate, sample
from mmr1.data.record import write_records
from mmr1.files import atomic_folder
from mmr1.types import MediaRef, Sample
from scripts.claims.start.start import Row, read, write

Splits = Mapping[str, Sequence[Sample] | Sequence[Row]]
"""Records by the name of their file, as samples or as rows."""


@dataclass(frozen=True, slots=True)
class Scan:
    """A picture of 56 pixels a side, and its digit."""

    picture: Image.Image
    digit: int


def scans(start: Path, split: str) -> list[Scan]:
    """The scans of ``sft``, ``rl`` or ``eval`` of a start."""
    rows = read(start / f"{split}.jsonl")
    return [
        Scan(Image.open(start / "data/images" / f"{number_of(row['id'])}.png"), int(row["answer"]))
        for row in rows
    ]


def number_of(name: str) -> str:
    """The number of a scan in its id, such as ``digits-0017``."""
    return name.rpartition("-")[2]


def build_once(folder: Path, build: Callable[[Path], Splits]) -> Path:
    """``folder`` with the media and records that ``build`` makes, unless it is there."""
    if not folder.exists():
        with atomic_folder(folder) as staging:
            for split, records in build(staging).items():
                rows = [record for record in records if isinstance(record, dict)]
                if rows:
                    write(staging / f"{split}.jsonl", rows)
                else:
                    write_records(staging / f"{split}.jsonl", cast(Sequence[Sample], records))
    return folder


def two(rng: Random, pool: Sequence[Scan]) -> tuple[Scan, Scan]:
    """Two scans of different digits."""
    while True:
        first, second = rng.sample(pool, 2)
        if first.digit != second.digit:
            return first, second


def question(
    name: str, media: Sequence[MediaRef], text: str, answer: int, thought: str = "", **meta: object
) -> Sample:
    """A sample with a question, and a demonstration if there is a thought."""
    messages = [ask(media, text)]
    if thought:
        messages.append(demonstrate(thought, str(answer)))
    return sample(name, messages, str(answer), "math", "claims", **meta)
