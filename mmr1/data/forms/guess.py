"""A guess at the columns of a row that has no known format, for the message that says so."""

from __future__ import annotations

from typing import Any

from mmr1.data.forms.columns import IMAGES, VIDEOS
from mmr1.data.forms.form import Row

FIELDS = ("question", "answer", "image", "video", "options", "task", "system")
"""What the converter ``rows`` takes from columns of any name."""

_NAMES = {
    "question": ("question", "problem", "prompt", "query", "instruction", "input", "text", "ques"),
    "answer": (
        "answer", "solution", "label", "ground_truth", "gold", "gt", "target", "output", "response",
        "caption",
    ),
    "image": (*IMAGES, "img", "img_path", "picture", "photo", "file_name", "filename"),
    "video": (*VIDEOS, "clip", "video_id"),
    "options": ("options", "choices", "candidates", "multi_choice"),
}  # fmt: skip
_PICTURES = (".png", ".jpg", ".jpeg", ".webp", ".bmp", ".gif")
_CLIPS = (".mp4", ".avi", ".mkv", ".webm", ".mov")


def guess(row: Row) -> dict[str, str]:
    """The columns that look like a question, an answer and so on, by field.

    A column is known by its name, or as a medium by its value.
    """
    found: dict[str, str] = {}
    lower = {str(name).lower(): str(name) for name, value in row.items() if value is not None}
    for field, names in _NAMES.items():
        column = next((lower[n] for n in names if n in lower), None)
        if column is not None and column not in found.values():
            found[field] = column
    for column, value in row.items():
        kind = _medium(value)
        if kind is not None and kind not in found and column not in found.values():
            found[kind] = str(column)
    return found


def remedy(row: Row) -> str:
    """What to do with a row of an unknown format: the command that converts it."""
    columns = guess(row)
    if "question" not in columns:
        named = ",".join(f"{field}=COLUMN" for field in FIELDS[:3])
        return (
            "if it has a question in some column, convert the file with mmr1-data convert rows "
            f"--map {named}; else set data.format"
        )
    mapped = ",".join(f"{field}={column}" for field, column in columns.items())
    return (
        f"these columns look like {mapped}; convert the file with mmr1-data convert rows "
        f"--input FILE --output FOLDER --map {mapped}"
    )


def _medium(value: Any) -> str | None:
    if isinstance(value, list) and value:
        return _medium(value[0])
    if isinstance(value, dict) and (value.get("bytes") or value.get("path")):
        return _medium(value.get("bytes") or value["path"])
    if isinstance(value, bytes):
        return "video" if value[4:8] == b"ftyp" else "image"
    if isinstance(value, str) and len(value) < 1000:
        name = value.lower()
        if name.endswith(_PICTURES):
            return "image"
        return "video" if name.endswith(_CLIPS) else None
    return None
