"""R1-V: a problem, and its answer inside the tag of the solution."""

from __future__ import annotations

from mmr1.data.forms.answers import tagged_answer
from mmr1.data.forms.assemble import assemble
from mmr1.data.forms.form import Form, Place, Row
from mmr1.types import Sample


def read(row: Row, place: Place) -> Sample:
    turns = [("user", row["problem"])]
    return assemble(
        row, place, turns, images=row.get("image"), videos=row.get("video"),
        answer=tagged_answer(row["solution"]), task="math", used=("problem", "solution"),
        untagged=True,
    )  # fmt: skip


FORM = Form("r1_v", ("problem", "solution"), read)
