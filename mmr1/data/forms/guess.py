"""A guess at the columns of a row that has no known format, for the message that says so."""

from __future__ import annotations

from mmr1.data.forms.columns import IMAGES, VIDEOS
from mmr1.data.forms.form import Row
from mmr1.data.forms.media_kinds import media_in

FIELDS = ("question", "answer", "image", "video", "options", "answer_index", "task", "system")
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
        kind = next((kind for kind, _ in media_in(value)), None)
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
