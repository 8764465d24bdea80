"""VLM-R1 referring expressions: the solution is a box in pixels of the original image."""

from __future__ import annotations

from mmr1.data.forms.assemble import assemble
from mmr1.data.forms.boxes import grounded, read_gold
from mmr1.data.forms.form import Form, Place, Row
from mmr1.types import Sample


def read(row: Row, place: Place) -> Sample:
    """``bbox_list`` and ``normalized_solution`` repeat the box in other spaces."""
    boxes = read_gold(row["solution"])
    if boxes is None:
        raise ValueError(f"the solution {str(row['solution'])[:60]!r} is no box [x1, y1, x2, y2]")
    sample = assemble(
        row, place, [("user", row["problem"])], images=row["image"], untagged=True,
        used=("problem", "solution", "width", "height", "bbox_list", "normalized_solution"),
    )  # fmt: skip
    stated = row.get("width") is not None and row.get("height") is not None
    return grounded(sample, boxes, size=(int(row["width"]), int(row["height"])) if stated else None)


def _is_box(row: Row) -> bool:
    return isinstance(row["solution"], list) or row.get("width") is not None


FORM = Form(
    name="rec",
    written_by="VLM-R1, referring expressions",
    keys=("problem", "solution", "image"),
    read=read,
    example={
        "image": "a.png",
        "problem": "the red cup",
        "solution": [3.5, 6.0, 33.5, 28.25],
        "width": 40,
        "height": 30,
    },
    fits=_is_box,
)
