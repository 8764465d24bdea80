"""Boxes in pictures: COCO, RefCOCO."""

from __future__ import annotations

import json
import pickle
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from datasets_prep.converters.base import Converter
from mmr1.boxes import pixels
from mmr1.data.forms.assemble import assemble
from mmr1.data.forms.boxes import grounded
from mmr1.data.forms.columns import first_of
from mmr1.data.forms.form import Place, Row
from mmr1.data.readers import read_rows
from mmr1.data.readers.classes import Located
from mmr1.data.record import parse_json
from mmr1.types import Sample
from mmr1.vision.images import image_size


# COCO detection: all boxes of one category in a picture.
def _rows_coco(path: Path) -> Iterator[Located]:
    """One row for each picture and each category in it, in the order of the pictures."""
    content = read_instances(path)
    names = {category["id"]: category["name"] for category in content["categories"]}
    found: dict[Any, dict[str, list[Any]]] = {}
    for annotation in content["annotations"]:
        boxes = found.setdefault(annotation["image_id"], {})
        boxes.setdefault(names[annotation["category_id"]], []).append(annotation)
    for number, image in by_id(content["images"]).items():
        for category, all_of_it in found.get(number, {}).items():
            yield (
                f"{path}[{number}.{category}]",
                {
                    "image_id": number,
                    "file_name": image["file_name"],
                    "category": category,
                    "boxes": [annotation["bbox"] for annotation in all_of_it],
                    "crowd": any(annotation.get("iscrowd") for annotation in all_of_it),
                },
            )


def _convert_coco(row: Row, place: Place) -> Iterator[Sample]:
    """Samples with boxes in pixels. A crowd is one box around many, so such rows have no gold."""
    if row["crowd"]:
        raise ValueError("a crowd: one box around many of the category")
    question = f"Locate every {row['category']} in the image. Give their bounding boxes."
    sample = assemble(
        row, place, [("user", question)], images=picture(place.root, row["file_name"]),
        untagged=True, used=("boxes", "crowd", "file_name"),
    )  # fmt: skip
    size = image_size(sample.media[0])
    yield grounded(sample, row["boxes"], pixels(*size, layout="xywh"), size)


COCO = Converter(
    name="coco",
    description="COCO detection: all boxes of a category in a picture",
    source="cocodataset.org, instances_*.json; pictures in train2017 and so on",
    licence="CC BY 4.0 (annotations); images: Flickr terms",
    files=("instances*.json",),
    convert=_convert_coco,
    rows=_rows_coco,
)


# RefCOCO, RefCOCO+ and RefCOCOg as raw rows: boxes as a corner and an extent.
def _rows_refcoco(path: Path) -> Iterator[Located]:
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


def _convert_refcoco(row: Row, place: Place) -> Iterator[Sample]:
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


REFCOCO = Converter(
    name="refcoco",
    description="RefCOCO/+/g raw rows: the box of a described object",
    source="lichengunc/refer",
    licence="RefCOCO and COCO annotation terms (CC BY 4.0); images: Flickr terms",
    files=("*ref*.json", "*ref*.jsonl", "*.parquet", "refs*.p"),
    convert=_convert_refcoco,
    rows=_rows_refcoco,
)


_FOLDERS = ("", "images", "train2017", "val2017", "train2014", "val2014", "images/train2014")


class _Plain(pickle.Unpickler):
    """Reads lists, mappings, texts and numbers. A pickle that names code is refused."""

    def find_class(self, module_name: str, global_name: str, /) -> Any:
        raise pickle.UnpicklingError(f"it names the code {module_name}.{global_name}")


def read_instances(path: Path) -> dict[str, Any]:
    """A file in COCO form. Raises ValueError if it is none."""
    try:
        content: Any = parse_json(path.read_text(encoding="utf-8-sig"))
    except (ValueError, UnicodeDecodeError) as error:
        raise ValueError(f"{path}: {error}") from error
    keys = {"images", "annotations"}
    if not isinstance(content, dict) or not keys <= content.keys():
        raise ValueError(f"{path} is not in COCO form: it has no 'images' and 'annotations'")
    return content


def read_refs(path: Path) -> list[dict[str, Any]]:
    """RefCOCO's ``refs(unc).p``: a pickle of plain values.

    Raises:
        ValueError: If the pickle is broken, or holds anything but plain values.
    """
    try:
        with path.open("rb") as file:
            refs = _Plain(file, encoding="utf-8", errors="replace").load()
    except Exception as error:  # a pickle can fail in any way
        raise ValueError(f"{path}: not a pickle of plain values: {error}") from error
    if not isinstance(refs, list) or not all(isinstance(ref, dict) for ref in refs):
        raise ValueError(f"{path} is not a list of referring expressions")
    return refs


def by_id(entries: Iterable[dict[str, Any]]) -> dict[Any, dict[str, Any]]:
    """The entries by their ``id``."""
    return {entry["id"]: entry for entry in entries}


def picture(root: Path, name: str) -> str:
    """The path of a picture, relative to the root: directly there, or in one of COCO's folders."""
    found = (f"{folder}/{name}".lstrip("/") for folder in _FOLDERS)
    return next((path for path in found if (root / path).is_file()), name)
