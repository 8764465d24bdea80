"""Rows of other projects, read in tests: the media that they name, and what became of a row."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

from PIL import Image

from mmr1.data.forms import read_row
from mmr1.data.forms.form import Place
from mmr1.types import Sample, TextPart
from tests.paths import REPOSITORY
from tests.vision.media import encoded, write_video

SIZE = (40, 30)
"""Width and height of the pictures."""


def examples() -> list[tuple[str, str, str, dict[str, Any]]]:
    """Format, writer, keys and row of each example of docs/datasets.md."""
    place = REPOSITORY / "scripts/dev/page_table.py"
    spec = importlib.util.spec_from_file_location("page_table", place)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return list(module.form_rows(REPOSITORY / "docs/datasets.md"))


def write_media(folder: Path) -> None:
    """``a.png`` (red), ``b.png`` (blue), ``c.png`` (green) and ``clip.mp4``."""
    for name, colour in (("a", "red"), ("b", "blue"), ("c", "green")):
        (folder / f"{name}.png").write_bytes(encoded(Image.new("RGB", SIZE, colour)))
    write_video(folder / "clip.mp4", frames=20)


def read(row: dict[str, Any], folder: Path, form: str | None = None) -> Sample:
    return read_row(row, Place(folder, "set", 0), form)


def written(sample: Sample) -> list[str]:
    """``user: [a.png]What?`` for every message."""

    def piece(part: Any) -> str:
        if isinstance(part, TextPart):
            return part.text
        return f"[{part.path.name if part.path else 'bytes'}]"

    return [f"{m.role}: {''.join(map(piece, m.parts))}" for m in sample.messages]
