"""R1-V: a problem, and its answer inside the tag of the solution."""

from __future__ import annotations

from dataclasses import replace

from mmr1.data.forms.answers import tagged_answer
from mmr1.data.forms.boxes import gold_boxes, grounded
from mmr1.data.forms.columns import images_of, videos_of
from mmr1.data.forms.form import Form, Place, Row
from mmr1.data.forms.question import assemble_question
from mmr1.rewards.plugins.columns import ROW
from mmr1.types import Sample


def read(row: Row, place: Place) -> Sample:
    """Boxes in the tag make a question about places, with IoU as its reward."""
    answer = tagged_answer(row["solution"])
    sample = assemble_question(
        row, place, row["problem"], answer, images=images_of(row), videos=videos_of(row),
        task="math", used=("problem", "solution"),
    )  # fmt: skip
    # The columns as its reward functions read them.
    own = {ROW: {key: row[key] for key in ("problem", "solution")}}
    sample = replace(sample, meta={**sample.meta, **own})
    if not sample.media or sample.task == "choice":
        return sample
    boxes = gold_boxes(row, answer, row["problem"])
    return sample if boxes is None else grounded(sample, boxes)


FORM = Form(
    name="r1_v",
    written_by="R1-V, open-r1-multimodal, Open-R1-Video",
    keys=("problem", "solution"),
    read=read,
    example={"problem": "How many?", "image": "a.png", "solution": "<answer> 3 </answer>"},
)
