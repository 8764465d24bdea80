"""Rows for a record file in another folder: with the paths of their media from there."""

from __future__ import annotations

import os
from collections.abc import Iterator, MutableMapping, MutableSequence
from functools import lru_cache
from pathlib import Path
from typing import Any

from datasets_prep.finish import copy_frames, write_bytes
from datasets_prep.record_files import content_digest
from mmr1.data.lines import stamp
from mmr1.data.record import dump
from mmr1.types import MediaRef
from mmr1.vision.paths import resolve_media


def carried(row: dict[str, Any], root: Path, folder: Path) -> bytes:
    """The line of a checked row in a record file of ``folder``; the row is changed in place.

    Media under the folder are named where they are. Others are linked into it, or copied where
    there are no links.

    Args:
        row: A record.
        root: Folder that its media paths are relative to.
        folder: Folder of the new record file.
    """
    for holder, key in _paths(row):
        holder[key] = _carried_medium(root, holder[key], folder)
    return dump(row).encode() + b"\n"


def _paths(
    row: dict[str, Any],
) -> Iterator[tuple[MutableMapping[Any, Any] | MutableSequence[Any], Any]]:
    """Where the row names media: ``holder[key]`` is a path."""
    for kind in ("images", "videos"):
        names = row.get(kind) or []
        yield from ((names, index) for index in range(len(names)))
    for turn in row["messages"]:
        if isinstance(turn["content"], list):
            yield from ((item, "path") for item in turn["content"] if item.get("path") is not None)


def _carried_medium(root: Path, name: str, folder: Path) -> str:
    path = resolve_media(root, name)
    return _place(str(path), stamp(path), str(folder))


@lru_cache(maxsize=1 << 16)
def _place(file: str, _stamp: tuple[int, ...], into: str) -> str:
    """The path of a medium relative to the folder, into which it is brought if need be."""
    path, folder = Path(file), Path(into)
    home = folder.resolve()
    if path.is_relative_to(home):
        return path.relative_to(home).as_posix()
    if path.name.endswith(".frames.json"):
        return copy_frames(path, folder).relative_to(folder).as_posix()
    digest = content_digest(MediaRef("image", path)).hex()
    target = folder / "media" / digest[:2] / f"{digest[:32]}{path.suffix}"
    target.parent.mkdir(parents=True, exist_ok=True)
    _link_or_copy(path, target)
    return target.relative_to(folder).as_posix()


def _link_or_copy(path: Path, target: Path) -> None:
    try:
        os.link(path, target)
    except FileExistsError:
        pass
    except OSError:  # another file system, or one without hard links
        write_bytes(target, path.read_bytes())
