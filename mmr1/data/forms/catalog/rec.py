"""VLM-R1 referring expressions: the solution is a box."""

from __future__ import annotations

from mmr1.boxes import check_inside, pixels
from mmr1.data.forms.assemble import assemble, with_size
from mmr1.data.forms.form import Form, Place, Row
from mmr1.types import Sample


def read(row: Row, place: Place) -> Sample:
    """VLM-R1 referring expressions: ``solution`` is xyxy in pixels of the original image."""
    width, height = int(row["width"]), int(row["height"])
    box = check_inside(row["solution"], pixels(width, height))
    sample = assemble(
        row, place, [("user", row["problem"])], images=row["image"], answer=[list(box)],
        task="iou", untagged=True,
        used=("problem", "solution", "width", "height", "bbox_list", "normalized_solution"),
    )  # fmt: skip
    return with_size(sample, (width, height))


FORM = Form("rec", ("problem", "solution", "image", "width", "height"), read)
