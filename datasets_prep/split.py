"""Split a dataset: record files that share no image and no video."""

from __future__ import annotations

import random
from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import repeat
from pathlib import Path

import numpy as np

from datasets_prep.carry import Carrier
from datasets_prep.outputs import check_new, joined, refuse_empty, refuse_repeated_ids
from datasets_prep.record_files import content_digest, map_pieces, record_files, row_of, rows_of
from mmr1.data.ids import hash64
from mmr1.data.lines import Piece
from mmr1.extras import needs_extra
from mmr1.files import atomic_binary, atomic_folder
from mmr1.parallel import one_pool


@dataclass
class Keys:
    """The hashes of the ids and of the media of a piece's records.

    Attributes:
        ids: ``[records]``.
        media: Media of one record after the other; of a record without media its id's.
        counts: ``[records]``, how many of ``media`` are each record's.
    """

    ids: array[int] = field(default_factory=lambda: array("Q"))
    media: array[int] = field(default_factory=lambda: array("Q"))
    counts: array[int] = field(default_factory=lambda: array("I"))


@one_pool()
def split(path: Path, shares: Mapping[str, float], output: Path, seed: int) -> dict[Path, int]:
    """Write a record file for every share; returns the number of records of each.

    Samples with the same image or video go into the same split, so a count may be missed by a few.
    The records keep their order. All files appear together.

    Args:
        path: A record file, or a folder of them.
        shares: Of each split, by its name: shares that add up to 1, or numbers of records.
        output: Folder of the new files.
        seed: Of the order in which groups are drawn.

    Raises:
        ValueError: The shares are neither, a record cannot be used, or a file exists.
    """
    are_shares = abs(sum(shares.values()) - 1) <= 1e-6
    are_counts = not are_shares and all(s >= 1 and s == int(s) for s in shares.values())
    if not are_shares and not are_counts:
        raise ValueError(
            f"the shares {dict(shares)} do not add up to 1, and are no whole numbers of records"
        )
    names = [f"{name}.jsonl" for name in shares]
    for name in names:
        check_new(output / name)
    files = record_files(path)
    keyed = list(map_pieces(keys_of, files, f"reading {path.name}"))
    refuse_repeated_ids(path, files, [piece.ids for piece in keyed])
    total = sum(len(piece.ids) for piece in keyed)
    refuse_empty(path, total)
    wanted = [share / total for share in shares.values()] if are_counts else [*shares.values()]
    if are_counts and (rest := total - sum(shares.values())) < 0:
        raise ValueError(f"{path} has {total:,} records, and the splits need {-rest:,.0f} more")
    if are_counts and rest:
        wanted.append(rest / total)
    groups = group_of_record(joined(k.media for k in keyed), joined(k.counts for k in keyed))
    part = parts(groups, wanted, seed)
    bounds = np.cumsum([len(piece.ids) for piece in keyed])[:-1]
    if output.exists() and any(output.iterdir()):
        _write_parts(files, np.split(part, bounds), [output / name for name in names])
    else:
        with atomic_folder(output) as folder:
            _write_parts(files, np.split(part, bounds), [folder / name for name in names])
    sizes = np.bincount(part, minlength=len(names)).tolist()
    return {output / name: size for name, size in zip(names, sizes, strict=False)}


def keys_of(piece: Piece) -> Keys:
    """The keys that decide into which split the records of a piece go."""
    keys = Keys()
    for _, _, sample in rows_of(piece):
        keys.ids.append(hash64(sample.id))
        media = [hash64(content_digest(ref)) for ref in sample.media] or [keys.ids[-1]]
        keys.media.extend(media)
        keys.counts.append(len(media))
    return keys


def _write_parts(files: Sequence[Path], part: Sequence[np.ndarray], targets: list[Path]) -> None:
    extra = zip(part, repeat(len(targets)), repeat(targets[0].parent))
    with atomic_binary(*targets) as outputs:
        for blocks in map_pieces(carry_parts, files, "writing", extra):
            for output, block in zip(outputs, blocks, strict=True):
                output.write(block)


def carry_parts(piece: Piece, part: np.ndarray, count: int, folder: Path) -> list[bytes]:
    """The lines of a piece by their parts, for record files in ``folder``."""
    blocks = [bytearray() for _ in range(count)]
    carrier, root = Carrier(folder), piece.path.parent
    for (position, line), number in zip(piece.lines(), part.tolist(), strict=True):
        if number < count:  # the rest is in no split
            blocks[number] += carrier.line(row_of(line, position), root)
    return [bytes(block) for block in blocks]


def group_of_record(keys: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """The group of each record. Records with a key in common, also through others, share one.

    Args:
        keys: The keys of all records, one record after the other.
        counts: ``[records]``, how many keys each has; at least one.

    Returns:
        ``[records]``, numbered in the order in which the groups first appear.
    """
    distinct, key = np.unique(keys, return_inverse=True)
    ends = np.cumsum(counts)
    group = key[ends - counts]  # of the first key of each record
    if len(keys) > len(counts):
        record_of_key = np.repeat(np.arange(len(counts)), counts)
        with needs_extra("data", "mmr1-data split"):
            from scipy.sparse import coo_array
            from scipy.sparse.csgraph import connected_components
        edges = coo_array(
            (np.ones(len(keys), bool), (group[record_of_key], key)), (len(distinct),) * 2
        )
        component = connected_components(edges, directed=False)[1]
        group = component[group]
    _, first, group = np.unique(group, return_index=True, return_inverse=True)
    rank = np.empty(len(first), np.int64)
    rank[np.argsort(first)] = np.arange(len(first))
    return rank[group]


def parts(groups: np.ndarray, shares: Sequence[float], seed: int) -> np.ndarray:
    """The part of each record: whole groups, in random order, to the part that lacks most.

    Args:
        groups: ``[records]``, the group of each record, numbered from 0.
        shares: Share of each part; they add up to 1.
        seed: Seed of the order.
    """
    sizes = np.bincount(groups).tolist()
    order = array("q", range(len(sizes)))
    random.Random(seed).shuffle(order)
    part_of_group = np.empty(len(sizes), np.int16)
    filled, total = [0] * len(shares), 0
    for group in order:
        total += sizes[group]
        lacks = [share * total - have for share, have in zip(shares, filled, strict=True)]
        part = lacks.index(max(lacks))
        filled[part] += sizes[group]
        part_of_group[group] = part
    return part_of_group[groups]
