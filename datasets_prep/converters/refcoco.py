"""RefCOCO, RefCOCO+ and RefCOCOg as raw rows: boxes as a corner and an extent."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from datasets_prep.coco_files import by_id, picture, read_instances, read_refs
from datasets_prep.converters.base import Converter
from mmr1.boxes import pixels
from mmr1.data.forms.assemble import assemble
from mmr1.data.forms.boxes import grounded
from mmr1.data.forms.columns import first_of
from mmr1.data.forms.form import Place, Row
from mmr1.data.readers import read_rows
from mmr1.data.readers.classes import Located
from mmr1.types import Sample
from mmr1.vision.images import image_size


def rows(path: Path) -> Iterator[Located]:
    """The rows of a file; those of ``refs(unc).p`` with the boxes of ``instances.json`` beside it.

    Raises:
        ValueError: The boxes are missing.
    """
    if path.suffix != ".p":
        yield from read_rows(path)
        return
    instances = path.with_name("instances.json")
    if not instances.is_file():
        raise ValueError(f"{path}: its boxes (instances.json) are not beside it; put them there")
    content = read_instances(instances)
    images, annotations = by_id(content["images"]), by_id(content["annotations"])
    for number, ref in enumerate(read_refs(path)):
        yield (
            f"{path}[{number}]",
            {
                "ref_id": ref["ref_id"],
                "split": ref["split"],
                "file_name": images[ref["image_id"]]["file_name"],
                "bbox": annotations[ref["ann_id"]]["bbox"],
                "sentences": ref["sentences"],
            },
        )


def convert(row: Row, place: Place) -> Iterator[Sample]:
    """One sample for every expression; ``bbox`` is xywh in pixels of the original image."""
    sentences = _sentences(row)
    if not sentences:
        raise ValueError("no referring expression")
    for sentence in sentences:
        question = f"Give the bounding box of: {sentence}"
        sample = assemble(
            row, place, [("user", question)], images=_image(row, place.root), untagged=True,
            used=("bbox", "sentences", "width", "height", "file_name", "answer", *_REPEATED),
        )  # fmt: skip
        size = image_size(sample.media[0])
        yield grounded(sample, [_box(row)], pixels(*size, layout="xywh"), size)


# The hub's copies hold the annotations a second time, as text.
_REPEATED = ("raw_anns", "raw_image_info", "raw_sentences", "segmentation")


def _image(row: Row, root: Path) -> Any:
    held = first_of(row, ("image", "image_path"))
    return held if held is not None else picture(root, row["file_name"])


def _box(row: Row) -> list[float]:
    """``bbox`` as xywh. Where the row has the raw annotation, its box counts: one copy on the hub
    has corners in ``bbox``."""
    raw = json.loads(row["raw_anns"]) if row.get("raw_anns") else row
    return list(raw["bbox"])


# "answer" holds the expressions in lmms-lab's copy on the hub.
_EXPRESSIONS = ("sentences", "sentence", "expression", "caption", "sent", "answer")


def _sentences(row: Row) -> list[str]:
    value: Any = next(
        (row[k] for k in _EXPRESSIONS if row.get(k)),
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
    files=("*ref*.json", "*ref*.jsonl", "*.parquet", "refs*.p"),
    convert=convert,
    rows=rows,
)
