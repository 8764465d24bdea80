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
from datasets_prep.record_files import find_ids, finder, map_pieces, record_files, row_of
from datasets_prep.task_checks import check_needs
from mmr1.data.ids import hash64, repeated
from mmr1.data.lines import Piece, line_numbers
from mmr1.data.record import decode
from mmr1.files import stamp
from mmr1.parallel import one_pool
from mmr1.types import MediaRef, Sample

Problem = tuple[str, str]
"""``(location, what is wrong)``."""


@one_pool()
def validate(path: Path, deep: bool = False) -> tuple[int, list[Problem]]:
    """The number of records, and all problems.

    Checks the schema, ids, placeholders, media (they decode and have the stated size), gold answers
    (the reward function of the task can read them), and the hashes of the manifest. With ``deep``
    every frame of a video is decoded, else its packets are read.
    """
    total, problems = 0, list(_check_manifest(path)) if path.is_dir() else []
    for file in record_files(path):
        count, found = _check_file(file, deep)
        total += count
        problems += found or ([] if count else [(str(file), "holds no records")])
    return total, problems


@dataclass
class Checked:
    """The findings in a piece of a record file.

    Attributes:
        count: Its records.
        problems: ``(position of the line, what is wrong)``.
        ids: Hashes of the ids.
    """

    count: int = 0
    problems: list[tuple[int, str]] = field(default_factory=list)
    ids: array[int] = field(default_factory=lambda: array("Q"))


def _check_file(file: Path, deep: bool) -> tuple[int, list[Problem]]:
    pieces = list(map_pieces(check_piece, [file], f"validating {file.name}", repeat((deep,))))
    problems = [problem for piece in pieces for problem in piece.problems]
    ids = np.concatenate([np.array([], np.uint64), *(piece.ids for piece in pieces)])
    problems += _repeated_ids(file, ids)
    lines = line_numbers(file, [position for position, _ in problems])
    located = [(f"{file}:{lines[position]}", what) for position, what in sorted(problems)]
    return sum(piece.count for piece in pieces), located


def check_piece(piece: Piece, deep: bool = False) -> Checked:
    """Check the records of a piece, except for ids that other pieces have too."""
    checked, root, find = Checked(), piece.path.parent, finder()
    for position, line in piece.lines():
        checked.count += 1
        try:
            sample = decode(row_of(line, position), root, find)
            checked.ids.append(hash64(sample.id))
            check_sample(sample, deep)
        except ValueError as error:
            checked.problems.append((position, str(error)))
    return checked


def _repeated_ids(file: Path, hashes: np.ndarray) -> list[tuple[int, str]]:
    twice = frozenset(repeated(hashes).tolist())
    if not twice:
        return []
    first: dict[str, int] = {}
    later: list[tuple[int, str]] = []
    for found in map_pieces(find_ids, [file], "looking up repeated ids", repeat((twice,))):
        for position, name in found:
            if first.setdefault(name, position) != position:
                later.append((position, name))
    lines = line_numbers(file, [first[name] for _, name in later])
    return [
        (position, f"the id '{name}' appears on line {lines[first[name]]} already")
        for position, name in later
    ]


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


def check_sample(sample: Sample, deep: bool = False) -> None:
    """Raises ValueError for what the task lacks, media that do not decode and unreadable golds.

    With ``deep`` every frame of a video is decoded.
    """
    check_needs(sample)
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
