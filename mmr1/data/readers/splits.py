"""The splits of a folder: which of its files belong together."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

_NAMES = {
    "train": "train",
    "training": "train",
    "validation": "validation",
    "valid": "validation",
    "val": "validation",
    "dev": "validation",
    "test": "test",
    "testing": "test",
    "testmini": "testmini",
    "eval": "eval",
    "evaluation": "eval",
}
_WORD = re.compile(r"[a-z]+")
OTHERS = "others"
"""The group of the files whose names tell no split."""


def split_of(path: Path, folder: Path) -> str:
    """The split in a file's name or in that of a folder above it; the file's own name goes first.

    >>> split_of(Path("d/data/test-00000-of-00002.parquet"), Path("d"))
    'test'
    >>> split_of(Path("d/val/12/data.json"), Path("d")), split_of(Path("d/rows.json"), Path("d"))
    ('validation', 'others')
    """
    for part in reversed(path.relative_to(folder).parts):
        for word in _WORD.findall(part.lower()):
            if word in _NAMES:
                return _NAMES[word]
    return OTHERS


def files_of_split(
    files: Iterable[Path], folder: Path, split: str | None, how: str, default: str | None = None
) -> list[Path]:
    """The files of one split of a folder.

    Args:
        files: All of them.
        folder: Where they lie.
        split: Its name (``val`` and ``dev`` are ``validation``, and so on), or None.
        how: How the user names a split, for the message.
        default: The split to take without a name, if all files name theirs.

    Raises:
        ValueError: If the split does not exist, or none was named and the folder has several.
    """
    groups: dict[str, list[Path]] = {}
    for path in sorted(files):
        groups.setdefault(split_of(path, folder), []).append(path)
    if split is not None:
        wanted = _NAMES.get(split.lower(), split)
    elif len(groups) == 1:
        (wanted,) = groups
    elif default in groups and OTHERS not in groups:
        wanted = str(default)
    else:
        wanted = ""
    if wanted in groups:
        return groups[wanted]
    shown = "; ".join(
        f"{name}: {', '.join(p.relative_to(folder).as_posix() for p in paths[:3])}"
        + (" …" if len(paths) > 3 else "")
        for name, paths in groups.items()
    )
    missing = f"no split '{split}'" if split else "several splits"
    raise ValueError(f"{folder} has {missing} ({shown}); name one, {how}")
