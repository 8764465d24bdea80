"""CLEVR and Super-CLEVR: questions about scenes, whose pictures lie in ``images``."""

from __future__ import annotations

from pathlib import Path

from mmr1.data.forms.assemble import assemble
from mmr1.data.forms.form import Form, Place, Row
from mmr1.types import Sample


def read(row: Row, place: Place) -> Sample:
    """A number is a count; yes, no and words are compared as they are."""
    answer = row["answer"]
    text = ("yes" if answer else "no") if isinstance(answer, bool) else str(answer)
    return assemble(
        row, place, [("user", row["question"])], images=_picture(row, place.root), answer=text,
        task="count" if text.isdigit() else "exact", used=("question", "answer"), untagged=True,
    )  # fmt: skip


def _picture(row: Row, root: Path) -> str:
    """Its path: in ``images`` or in the folder of its split there, or beside the questions."""
    name = str(row["image_filename"])
    folders = ("images", f"images/{row.get('split')}", ".")
    return next(
        (f"{folder}/{name}" for folder in folders if (root / folder / name).is_file()),
        f"images/{name}",
    )


FORM = Form(
    name="clevr",
    written_by="CLEVR, Super-CLEVR",
    keys=("image_filename", "question", "answer"),
    read=read,
    example={"image_filename": "a.png", "question": "Is there a bus?", "answer": True},
)
