"""Rows for a record file in another folder: with the paths of their media from there."""

from __future__ import annotations

import os
from collections.abc import Iterator, MutableMapping, MutableSequence
from pathlib import Path
from typing import Any

from datasets_prep.finish import copy_frames, link_or_copy
from datasets_prep.record_files import content_digest
from mmr1.data.record import dump
from mmr1.types import MediaRef
from mmr1.vision.paths import real_path, resolve_media

FRAMES = ".frames.json"
"""A folder of frames is a list of them, which lies beside it."""


class Carrier:
    """Makes lines for a record file of another folder.

    Media under that folder are named where they are. Others are linked into it, or copied where
    there are no links. Each is looked at once, so a carrier is for one piece of a file: media may
    change later.

    Args:
        folder: Folder of the new record file.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._places: dict[tuple[Path, str], str] = {}

    def line(self, row: dict[str, Any], root: Path) -> bytes:
        """The line of a checked row; the row is changed in place.

        Args:
            row: A record.
            root: Folder that its media paths are relative to.
        """
        for holder, key in _paths(row):
            medium = (root, holder[key])
            if (place := self._places.get(medium)) is None:
                place = self._places[medium] = _carried_medium(root, holder[key], self._folder)
            holder[key] = place
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
    home = real_path(str(folder)).rstrip("/") + "/"
    if str(path).startswith(home):
        return str(path).removeprefix(home)
    place = _place(path)
    if not os.path.exists(f"{folder}/{place}"):  # noqa: PTH110 - for every medium
        _bring(path, folder, place)
    return place


def _place(path: Path) -> str:
    """Where a medium of another folder belongs in the new one, by its content."""
    digest = content_digest(MediaRef("image", path)).hex()
    if path.name.endswith(FRAMES):
        return f"media/{digest[:32]}/{path.name}"
    return f"media/{digest[:2]}/{digest[:32]}{path.suffix}"


def _bring(path: Path, folder: Path, place: str) -> None:
    if path.name.endswith(FRAMES):
        copy_frames(path, folder)
        return
    link_or_copy(path, folder / place)
