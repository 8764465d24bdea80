"""R1-V, evaluation rows: a question, its picture and the truth."""

from __future__ import annotations

from mmr1.data.forms.assemble import assemble
from mmr1.data.forms.form import Form, Place, Row
from mmr1.types import Sample


def read(row: Row, place: Place) -> Sample:
    """A whole number is a count."""
    answer = row["ground_truth"]
    return assemble(
        row, place, [("user", row["question"])], images=row["image_path"], answer=answer,
        task="count" if isinstance(answer, int) else "math", untagged=True,
        used=("question", "ground_truth"),
    )  # fmt: skip


FORM = Form(
    name="r1_v_eval",
    written_by="R1-V, evaluation",
    keys=("image_path", "question", "ground_truth"),
    read=read,
    example={"image_path": "a.png", "question": "How many?", "ground_truth": 4},
)
