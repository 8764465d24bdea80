"""RefCOCO, RefCOCO+ and RefCOCOg as raw rows: boxes as a corner and an extent."""

from collections.abc import Iterator
from typing import Any

from datasets_prep.converters.base import Converter
from mmr1.boxes import pixels
from mmr1.data.forms.assemble import assemble
from mmr1.data.forms.boxes import grounded
from mmr1.data.forms.form import Place, Row
from mmr1.types import Sample
from mmr1.vision.images import image_size


def convert(row: Row, place: Place) -> Iterator[Sample]:
    """One sample for every expression; ``bbox`` is xywh in pixels of the original image."""
    sentences = _sentences(row)
    if not sentences:
        raise ValueError("no referring expression")
    for sentence in sentences:
        question = f"Give the bounding box of: {sentence}"
        sample = assemble(
            row, place, [("user", question)], images=row.get("image") or row.get("file_name"),
            untagged=True, used=("bbox", "sentences", "width", "height"),
        )  # fmt: skip
        size = image_size(sample.media[0])
        yield grounded(sample, [row["bbox"]], pixels(*size, layout="xywh"), size)


def _sentences(row: Row) -> list[str]:
    value: Any = next(
        (row[k] for k in ("sentences", "sentence", "expression", "caption", "sent") if row.get(k)),
        [],
    )
    sentences = [value] if isinstance(value, str) else value
    return [s["raw"] if isinstance(s, dict) and "raw" in s else _sent(s) for s in sentences]


def _sent(sentence: Any) -> str:
    return str(sentence["sent"] if isinstance(sentence, dict) else sentence)


CONVERTER = Converter(
    name="refcoco",
    description="RefCOCO/+/g raw rows: the box of a described object",
    source="lichengunc/refer",
    licence="RefCOCO and COCO annotation terms (CC BY 4.0); images: Flickr terms",
    files=("*ref*.json", "*ref*.jsonl", "*.parquet"),
    convert=convert,
)
