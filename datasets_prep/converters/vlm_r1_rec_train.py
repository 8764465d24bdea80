"""VLM-R1 referring expressions, training form: a conversation whose reply is the box."""

from collections.abc import Iterator

from datasets_prep.converters.base import Converter
from mmr1.data.forms.assemble import assemble
from mmr1.data.forms.boxes import grounded
from mmr1.data.forms.chat import turns_of
from mmr1.data.forms.form import Place, Row
from mmr1.rewards.grounding.iou import read_boxes
from mmr1.types import Sample


def convert(row: Row, place: Place) -> Iterator[Sample]:
    """The reply holds xyxy in pixels of the original image."""
    turns = turns_of(row["conversations"])
    boxes = read_boxes(turns[-1][1]) if turns and turns[-1][0] == "assistant" else None
    if not boxes:
        raise ValueError("the reply holds no box")
    sample = assemble(
        row, place, turns[:-1], images=row["image"], used=("conversations",), untagged=True
    )
    yield grounded(sample, boxes)


CONVERTER = Converter(
    name="vlm_r1_rec_train",
    description="RefCOCO rows of VLM-R1 (training form)",
    source="omlab/VLM-R1 on the Hugging Face Hub",
    licence="Apache-2.0 (VLM-R1); RefCOCO and COCO annotation terms",
    files=("*rec*.jsonl", "*.jsonl"),
    convert=convert,
)
