"""A dataset in small: its files and media, and the records that they become."""

from __future__ import annotations

import json
import pickle
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from PIL import Image

from datasets_prep.frames import list_frames
from tests.vision.media import encoded, noise, write_video

SIZE = (64, 48)
"""Width and height of every picture and video."""
SECONDS = 6.0
"""Length of every video."""


@dataclass(frozen=True)
class Record:
    """What a record is to hold.

    Attributes:
        messages: ``role: text``; a medium is written as its file name in brackets.
        options: Of the first medium.
    """

    messages: Sequence[str]
    answer: Any = None
    task: str | None = None
    meta: Mapping[str, Any] = field(default_factory=dict)
    options: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Dataset:
    """A dataset in small.

    Attributes:
        converter: Which one reads it, or which row format, with ``--map`` if need be.
        files: Annotation files by name; the suffix says how the rows are written.
        media: Names of the pictures and videos beside them.
        frames: Folders of pictures that ``mmr1-data frames`` lists as videos.
        records: In order.
        dropped: A part of the reason of each row that cannot be used, in order.
        changed: As the manifest counts them.
    """

    converter: str
    files: Mapping[str, Any]
    records: Sequence[Record]
    media: Sequence[str] = ()
    frames: Sequence[str] = ()
    dropped: Sequence[str] = ()
    changed: Mapping[str, int] = field(default_factory=dict)

    def write(self, folder: Path) -> None:
        for name in self.media:
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            if name.endswith(".mp4"):
                write_video(folder / name, int(10 * SECONDS), *SIZE, fps=10)
            else:
                (folder / name).write_bytes(picture(name))
        for name in self.frames:
            list_frames(folder / name, fps=1.0)
        for name, content in self.files.items():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            write_rows(folder / name, content)


def picture(name: str) -> bytes:
    """The encoded picture of this name: another name is another picture."""
    image = Image.fromarray(noise(*SIZE, zlib.crc32(name.encode())))
    return encoded(image, "JPEG" if name.endswith(".jpg") else "PNG")


def embedded(name: str) -> dict[str, Any]:
    """A picture as a parquet file of the Hub holds it."""
    return {"bytes": picture(name), "path": None}


def write_rows(path: Path, content: Any) -> None:
    if path.suffix == ".parquet":
        pq.write_table(pa.Table.from_pylist(content), path)
    elif path.suffix == ".p":
        path.write_bytes(pickle.dumps(content, protocol=2))
    elif path.suffix == ".jsonl":
        path.write_text("".join(json.dumps(row) + "\n" for row in content))
    else:
        path.write_text(content if path.suffix == ".txt" else json.dumps(content))
