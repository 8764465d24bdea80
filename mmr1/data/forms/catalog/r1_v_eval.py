"""R1-V, evaluation rows: a question, its picture and the truth."""

from __future__ import annotations

from mmr1.data.forms.assemble import assemble
from mmr1.data.forms.form import Form, Place, Row
from mmr1.types import Sample


def read(row: Row, place: Place) -> Sample:
    answer = row["ground_truth"]
    return assemble(
        row, place, [("user", row["question"])], images=row["image_path"], answer=answer,
        task="count" if isinstance(answer, int) else "math", untagged=True,
        used=("question", "ground_truth"),
    )  # fmt: skip


FORM = Form("r1_v_eval", ("image_path", "question", "ground_truth"), read)
