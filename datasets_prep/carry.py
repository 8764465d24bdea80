"""Rows for a record file in another folder: with the paths of their media from there."""

from __future__ import annotations

from collections.abc import Iterator, MutableMapping, MutableSequence
from pathlib import Path
from typing import Any, get_args

from datasets_prep.finish import copy_frames, link_or_copy
from datasets_prep.record_files import content_digest
from mmr1.data.record import dump_parsed
from mmr1.types import MediaKind, MediaRef
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
        self._home = real_path(str(folder)).rstrip("/") + "/"
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
                place = self._places[medium] = self._carried(root, holder[key])
            holder[key] = place
        return dump_parsed(row) + b"\n"

    def _carried(self, root: Path, name: str) -> str:
        """The path of a medium from the new record file."""
        path = resolve_media(root, name)
        text = str(path)
        if text.startswith(self._home):
            return text.removeprefix(self._home)
        digest = content_digest(MediaRef("image", path)).hex()
        if text.endswith(FRAMES):
            copy_frames(path, self._folder)
            return f"media/{digest[:32]}/{path.name}"
        place = f"media/{digest[:2]}/{digest[:32]}{path.suffix}"
        link_or_copy(text, f"{self._folder}/{place}")
        return place


def _paths(
    row: dict[str, Any],
) -> Iterator[tuple[MutableMapping[Any, Any] | MutableSequence[Any], Any]]:
    """The places of paths in a row: ``holder[key]`` is the path of a medium."""
    for kind in get_args(MediaKind):
        names = row.get(f"{kind}s") or []
        yield from ((names, index) for index in range(len(names)))
    for turn in row["messages"]:
        if isinstance(turn["content"], list):
            yield from ((item, "path") for item in turn["content"] if item.get("path") is not None)
