"""Rows of a WebDataset: a tar file in which the files of a sample share the name before the dot."""

from __future__ import annotations

import json
import tarfile
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path, PurePosixPath
from typing import Any

from mmr1.data.readers.classes import Located

_SUFFIXES = {
    "images": ("jpg", "jpeg", "png", "webp", "bmp", "gif", "tif", "tiff"),
    "videos": ("mp4", "avi", "mkv", "webm", "mov"),
}
_COLUMNS = {"images": ("image", "image_path", "images"), "videos": ("video", "path", "videos")}

_Member = tuple[str, str, bytes]
"""Key, extension and content of a file."""


def tar_rows(path: Path) -> Iterator[Located]:
    """A row for each sample: the columns of its JSON file, its pictures, videos and texts.

    The media take the place of the column that names them, ``image`` or ``images``, ``video`` or
    ``videos`` without one.

    Raises:
        ValueError: It is not a tar file.
    """
    try:
        with tarfile.open(path, "r|*") as archive:
            for key, members in groupby(_members(archive), key=lambda member: member[0]):
                yield f"{path}[{key}]", _row(key, list(members))
    except (tarfile.TarError, EOFError, OSError) as error:
        raise ValueError(f"{path}: not a valid tar file: {error}") from error


def _members(archive: tarfile.TarFile) -> Iterator[_Member]:
    for member in archive:
        name = PurePosixPath(member.name)
        if not member.isfile() or name.name.startswith("."):
            continue
        stem, _, extension = name.name.partition(".")
        file = archive.extractfile(member)
        assert file is not None, "a regular file has content"
        yield str(name.with_name(stem)), extension.lower(), file.read()


def _row(key: str, members: list[_Member]) -> dict[str, Any] | ValueError:
    columns: dict[str, Any] = {"__key__": key}
    media: dict[str, list[bytes]] = {name: [] for name in _SUFFIXES}
    for _, extension, content in members:
        suffix = extension.rpartition(".")[2]
        kind = next((name for name, suffixes in _SUFFIXES.items() if suffix in suffixes), None)
        try:
            if kind is not None:
                media[kind].append(content)
            elif suffix == "json":
                columns.update(json.loads(content))
            else:
                columns[extension] = content.decode()
        except (ValueError, TypeError) as error:
            return ValueError(f"{key}.{extension} cannot be read: {error}")
    for kind, contents in media.items():
        if contents:
            plain = kind if len(contents) > 1 else kind.removesuffix("s")
            name = next((name for name in _COLUMNS[kind] if name in columns), plain)
            columns[name] = contents
    return columns
