"""Mix datasets: records of each by its share, in random order, without repeats."""

from __future__ import annotations

import random
from array import array
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import numpy as np

from datasets_prep.carry import Carrier
from datasets_prep.outputs import check_new, joined, opened
from datasets_prep.record_files import BadRecordError, finder, map_pieces, record_files, row_of
from mmr1.data.ids import hash64, repeated
from mmr1.data.lines import Piece
from mmr1.data.record import decode
from mmr1.parallel import in_order, one_pool
from mmr1.progress import Progress

BATCH = 2_000
"""Records that a process reads at a time."""


def quotas(sizes: Mapping[str, int], shares: Mapping[str, float], count: int) -> dict[str, int]:
    """The number of records of each source of a mixture, ``count`` together.

    Raises:
        ValueError: A source is too small for its share.
    """
    total = sum(shares.values())
    given, share = 0, 0.0
    quota: dict[str, int] = {}
    for name, size in sizes.items():
        # The cumulated share is rounded, so that the counts of all sources add up to ``count``.
        share += shares[name]
        quota[name] = round(count * share / total) - given
        given += quota[name]
        if quota[name] > size:
            raise ValueError(f"{name} has {size} samples; its share needs {quota[name]}")
    return quota


@dataclass(frozen=True)
class Picks:
    """Records to take, in this order.

    Attributes:
        files: Record files.
        prefixes: Prefix of the ids of each.
        file: ``[picks]``, indices into ``files``.
        position: ``[picks]``, where their lines begin.
    """

    files: list[Path]
    prefixes: list[str]
    file: np.ndarray
    position: np.ndarray

    def batches(self, size: int) -> Iterator[Picks]:
        """The same picks, ``size`` at a time."""
        for at in range(0, len(self.file), size):
            file, position = self.file[at : at + size], self.position[at : at + size]
            yield Picks(self.files, self.prefixes, file, position)


@one_pool()
def mix(shares: Mapping[str, float], output: Path, count: int, seed: int) -> None:
    """Write ``count`` records of several datasets, by share and without repeats, in random order.

    Raises:
        ValueError: A source is too small for its share, a record cannot be used, or the output
            exists.
    """
    check_new(output)
    picks = _pick(shares, count, seed)
    ids: list[array[int]] = []
    with opened(output) as file, Progress("mixing", "records", count) as progress:
        jobs = ((batch, output.parent) for batch in picks.batches(BATCH))
        for lines, hashes in in_order(carry_picks, jobs):
            file.write(lines)
            ids.append(hashes)
            progress.advance(len(hashes))
        _refuse_repeated_picks(picks, ids)


def _pick(shares: Mapping[str, float], count: int, seed: int) -> Picks:
    files: list[Path] = []
    prefixes: list[str] = []
    lines: dict[str, np.ndarray] = {}  # [lines, 2] of each source: index of the file, position
    for name, prefix in zip(shares, _prefixes(list(shares)), strict=True):
        of_source = []
        for path in record_files(Path(name)):
            starts = joined(map_pieces(line_starts, [path], f"reading {path.name}"))
            of_source.append(np.stack([np.full(len(starts), len(files)), starts], axis=1))
            files.append(path)
            prefixes.append(prefix)
        lines[name] = np.concatenate(of_source)
    chosen = []
    for name, quota in quotas({n: len(own) for n, own in lines.items()}, shares, count).items():
        own = lines.pop(name)
        chosen.append(own[random.Random(f"{seed}/{name}").sample(range(len(own)), quota)])
    order = array("q", range(count))
    random.Random(seed).shuffle(order)
    picked = np.concatenate(chosen)[np.asarray(order)]
    return Picks(files, prefixes, picked[:, 0], picked[:, 1])


def _prefixes(names: Sequence[str]) -> list[str]:
    """The prefixes of the sources' ids: names of their files, or whole paths if these repeat."""
    stems = [Path(name).stem for name in names]
    return stems if len(set(stems)) == len(stems) else [Path(n).as_posix() for n in names]


def line_starts(piece: Piece) -> array[int]:
    """The starts of the lines of a piece."""
    return array("q", (position for position, _ in piece.lines()))


def carry_picks(picks: Picks, folder: Path) -> tuple[bytes, array[int]]:
    """The picked lines for a record file in ``folder``, and the hashes of their new ids."""
    lines, ids = bytearray(), array("Q")
    carrier, find = Carrier(folder), finder()
    for path, position, prefix, line in _picked_lines(picks):
        try:
            row = row_of(line, position)
            row["id"] = f"{prefix}/{decode(row, path.parent, find).id}"
            lines += carrier.line(row, path.parent)
        except ValueError as error:
            raise BadRecordError(path, position, str(error)) from error
        ids.append(hash64(row["id"]))
    return bytes(lines), ids


def _picked_lines(picks: Picks) -> Iterator[tuple[Path, int, str, bytes]]:
    open_files: dict[int, BinaryIO] = {}
    try:
        for number, position in zip(picks.file.tolist(), picks.position.tolist(), strict=True):
            path = picks.files[number]
            if number not in open_files:
                open_files[number] = path.open("rb")
            open_files[number].seek(position)
            yield path, position, picks.prefixes[number], open_files[number].readline()
    finally:
        for file in open_files.values():
            file.close()


def _refuse_repeated_picks(picks: Picks, hashes: Sequence[array[int]]) -> None:
    twice = frozenset(repeated(joined(hashes)).tolist()) if hashes else frozenset()
    seen: set[str] = set()
    for path, position, prefix, line in _picked_lines(picks) if twice else ():
        name = f"{prefix}/{row_of(line, position)['id']}"
        if hash64(name) in twice and name in seen:
            raise ValueError(f"{path}: the id '{name}' appears twice; ids must be unique")
        seen.add(name)
