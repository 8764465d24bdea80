"""Shares, checks and ids, for the commands that write record files."""

from __future__ import annotations

import math
import sys
from array import array
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import repeat
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from datasets_prep.record_files import find_ids, map_pieces
from mmr1.data.ids import repeated
from mmr1.files import atomic_binary


def shares(words: Sequence[str]) -> dict[str, float]:
    """``["train=0.9", "eval=0.1"]`` as a dictionary; ``train=900`` is a count.

    Raises:
        ValueError: A word is not of that form, or a name is repeated.
    """
    parsed: dict[str, float] = {}
    for word in words:
        name, _, share = word.rpartition("=")
        try:
            value = float(share)
        except ValueError:
            value = 0.0
        if not name or not 0 < value < math.inf:
            raise ValueError(f"'{word}' is not of the form name=share, as in train=0.9")
        if name in parsed:
            raise ValueError(f"'{name}' has two shares; name each once")
        parsed[name] = value
    return parsed


STDOUT = Path("-")
"""``--output -``. Media are then named from the working folder."""


@contextmanager
def opened(path: Path) -> Iterator[BinaryIO]:
    """A new record file, which appears once it is complete; or the standard output."""
    if path == STDOUT:
        yield sys.stdout.buffer
        return
    with atomic_binary(path) as (file,):
        yield file


def say(path: Path, text: str) -> None:
    """Say what was written: on the error output where the records are on the other."""
    print(f"{path}: {text}", file=sys.stderr if path == STDOUT else sys.stdout)


def check_new(path: Path) -> None:
    """Refuse an output that exists, or whose name does not end in ``.jsonl``; not ``-``."""
    if path == STDOUT:
        return
    if path.suffix != ".jsonl":
        raise ValueError(f"{path}: records are JSON Lines; name the output {path.name}.jsonl")
    if path.exists():
        raise ValueError(f"{path} exists; remove it or name another output")


def refuse_empty(path: Path, count: int) -> None:
    """Raise ValueError if a dataset has no records."""
    if not count:
        raise ValueError(f"{path} holds no records; check the path or make the dataset again")


def refuse_repeated_ids(path: Path, files: Sequence[Path], hashes: Sequence[array[int]]) -> None:
    """Raise ValueError if an id appears twice in the files, whose hashes are given."""
    twice = frozenset(repeated(joined(hashes)).tolist()) if hashes else frozenset()
    if not twice:
        return
    seen: set[str] = set()
    for found in map_pieces(find_ids, files, "looking up repeated ids", repeat((twice,))):
        for _, name in found:
            if name in seen:
                raise ValueError(f"{path}: the id '{name}' appears twice; ids must be unique")
            seen.add(name)


def joined(arrays: Iterable[Any]) -> np.ndarray:
    """One array of several; an empty one of none."""
    return np.concatenate([np.array([], np.uint8), *map(np.asarray, arrays)])
