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

FRAMES = ".frames.json"
"""A folder of frames is a list of them, which lies beside it."""


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
    place, inside = _place(str(path), stamp(path), str(folder))
    if not inside and not os.path.exists(f"{folder}/{place}"):  # noqa: PTH110 - for every medium
        _bring(path, folder, place)
    return place


@lru_cache(maxsize=1 << 16)
def _place(file: str, _stamp: tuple[int, ...], into: str) -> tuple[str, bool]:
    """The path of a medium relative to the folder, and whether it is under the folder already."""
    path, home = Path(file), Path(into).resolve()
    if path.is_relative_to(home):
        return path.relative_to(home).as_posix(), True
    digest = content_digest(MediaRef("image", path)).hex()
    if path.name.endswith(FRAMES):
        return f"media/{digest[:32]}/{path.name}", False
    return f"media/{digest[:2]}/{digest[:32]}{path.suffix}", False


def _bring(path: Path, folder: Path, place: str) -> None:
    if path.name.endswith(FRAMES):
        copy_frames(path, folder)
        return
    target = folder / place
    target.parent.mkdir(parents=True, exist_ok=True)
    try:
        os.link(path, target)
    except FileExistsError:  # another process was first
        pass
    except OSError:  # another file system, or one without hard links
        write_bytes(target, path.read_bytes())
