"""Check a dataset as a training run and its reward functions will read it."""

from __future__ import annotations

from array import array
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import repeat
from pathlib import Path
from typing import Any

import numpy as np

from datasets_prep.finish import check_gold, check_media
from datasets_prep.manifest import content_hashes, media_hash, read_manifest
from datasets_prep.record_files import (
    Part,
    Place,
    find_ids,
    located,
    map_parts,
    map_pieces,
    samples_of,
)
from datasets_prep.task_checks import check_needs, is_demonstration
from mmr1.data.forms import shortened
from mmr1.data.forms.boxes import BoxTally
from mmr1.data.ids import hash64, repeated
from mmr1.data.lines import Piece, line_numbers
from mmr1.files import stamp
from mmr1.parallel import one_pool
from mmr1.types import MediaRef, Sample

Problem = tuple[str, str]
"""``(location, what is wrong)``."""


@one_pool()
def validate(path: Path, deep: bool = False, needs_task: bool = True) -> tuple[int, list[Problem]]:
    """The number of records, and all problems, of data in any format that ``data.train`` reads.

    Checks the schema, ids, placeholders, media (they decode and have the stated size), gold answers
    (the reward function of the task can read them), and the hashes of the manifest.

    Args:
        path: A file or a folder.
        deep: Decode every frame of a video, else its packets are read.
        needs_task: A record with an answer needs a task, as the reward ``auto`` does.
    """
    problems = list(_check_manifest(path)) if path.is_dir() else []
    boxes, total, ids = BoxTally(), 0, [np.array([], np.uint64)]
    files: dict[Path, None] = {}
    for part, checked in map_parts(
        check_part, path, f"validating {path.name}", repeat((deep, needs_task))
    ):
        total += checked.count
        problems += located(part, checked.problems)
        ids.append(np.asarray(checked.ids, np.uint64))
        boxes.merge(checked.boxes)
        if isinstance(part, Piece):
            files[part.path] = None
    twice = frozenset(repeated(np.concatenate(ids)).tolist())
    if twice:
        problems += _repeated_ids(path, list(files), twice)
    if (reason := boxes.most_outside()) is not None:
        problems.append((str(path), reason))
    return total, problems or ([] if total else [(str(path), "holds no records")])


@dataclass
class Checked:
    """The findings in a part of a dataset.

    Attributes:
        count: Its records.
        problems: ``(place of the record, what is wrong)``.
        ids: Hashes of the ids.
        boxes: Its gold boxes.
    """

    count: int = 0
    problems: list[tuple[Place, str]] = field(default_factory=list)
    ids: array[int] = field(default_factory=lambda: array("Q"))
    boxes: BoxTally = field(default_factory=BoxTally)


def check_part(part: Part, deep: bool = False, needs_task: bool = True) -> Checked:
    """Check the records of a part, except for ids that other parts have too."""
    checked = Checked()
    for place, sample in samples_of(part):
        checked.count += 1
        checked.boxes.add(sample)
        try:
            if isinstance(sample, ValueError):
                raise sample
            checked.ids.append(hash64(sample.id))
            check_sample(sample, deep, needs_task)
        except ValueError as error:
            checked.problems.append((place, shortened(str(error))))
    return checked


def _repeated_ids(path: Path, files: list[Path], twice: frozenset[int]) -> list[Problem]:
    first: dict[str, str] = {}
    problems = []
    for file in files:
        for found in map_pieces(find_ids, [file], "looking up repeated ids", repeat((twice,))):
            lines = line_numbers(file, [position for position, _ in found])
            for position, name in found:
                place = f"{file}:{lines[position]}"
                if (before := first.setdefault(name, place)) != place:
                    where = before.removeprefix(f"{file}:")
                    where = f"on line {where}" if where.isdigit() else f"in {before}"
                    problems.append((place, f"the id '{name}' appears {where} already"))
    return problems or [(str(path), "an id appears twice; ids must be unique")]


def _check_manifest(folder: Path) -> list[Problem]:
    manifest: dict[str, Any] | None = read_manifest(folder)
    if manifest is None:
        return []
    hashes = content_hashes(folder)
    records = manifest["sha256"]
    problems = [
        (str(folder / name), "is not the file of the manifest (its hash differs)")
        for name, digest in records.items()
        if hashes.get(name) != digest
    ]
    if (
        media_hash({n: h for n, h in hashes.items() if n not in records})
        != (manifest["media"]["sha256"])
    ):
        problems.append((str(folder), "its media are not those of the manifest"))
    return problems


def check_sample(sample: Sample, deep: bool = False, needs_task: bool = True) -> None:
    """Raises ValueError for what the task lacks, media that do not decode and unreadable golds.

    With ``deep`` every frame of a video is decoded.
    """
    check_needs(sample)
    if needs_task and sample.task is None and not is_demonstration(sample):
        raise ValueError(
            "no task: the reward 'auto' scores an answer by its record's task; give the record a "
            "'task', or name your own reward function and validate with --no-needs-task"
        )
    for ref in sample.media:
        size = _size(ref, deep)
        if ref.size is not None and tuple(ref.size) != size:
            raise ValueError(f"{ref}: the record states {ref.size}, it is {size}")
    check_gold(sample)


def _size(ref: MediaRef, deep: bool) -> tuple[int, int] | None:
    """The size of a medium that decodes; a picture of many records is decoded once per process."""
    if ref.kind == "image" and ref.path is not None:
        return _size_of_image(str(ref.path), ref.size, stamp(ref.path))
    return check_media(ref, deep)


@lru_cache(maxsize=1 << 16)
def _size_of_image(
    path: str, size: tuple[int, int] | None, _stamp: tuple[int, ...]
) -> tuple[int, int] | None:
    return check_media(MediaRef("image", Path(path), None, size))
