"""COCO detection: all boxes of one category in a picture."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from datasets_prep.coco_files import by_id, picture, read_instances
from datasets_prep.converters.base import Converter
from mmr1.boxes import pixels
from mmr1.data.forms.assemble import assemble
from mmr1.data.forms.boxes import grounded
from mmr1.data.forms.form import Place, Row
from mmr1.data.readers.classes import Located
from mmr1.types import Sample
from mmr1.vision.images import image_size


def rows(path: Path) -> Iterator[Located]:
    """One row for each picture and each category in it, in the order of the pictures."""
    content = read_instances(path)
    names = {category["id"]: category["name"] for category in content["categories"]}
    found: dict[Any, dict[str, list[Any]]] = {}
    for annotation in content["annotations"]:
        boxes = found.setdefault(annotation["image_id"], {})
        boxes.setdefault(names[annotation["category_id"]], []).append(annotation)
    for number, image in by_id(content["images"]).items():
        for category, annotations in found.get(number, {}).items():
            yield (
                f"{path}[{number}.{category}]",
                {
                    "image_id": number,
                    "file_name": image["file_name"],
                    "category": category,
                    "boxes": [annotation["bbox"] for annotation in annotations],
                    "crowd": any(annotation.get("iscrowd") for annotation in annotations),
                },
            )


def convert(row: Row, place: Place) -> Iterator[Sample]:
    """Boxes are xywh in pixels. A crowd is one box around many, so such rows have no gold."""
    if row["crowd"]:
        raise ValueError("a crowd: one box around many of the category")
    question = f"Locate every {row['category']} in the image. Give their bounding boxes."
    sample = assemble(
        row, place, [("user", question)], images=picture(place.root, row["file_name"]),
        untagged=True, used=("boxes", "crowd", "file_name"),
    )  # fmt: skip
    size = image_size(sample.media[0])
    yield grounded(sample, row["boxes"], pixels(*size, layout="xywh"), size)


CONVERTER = Converter(
    name="coco",
    description="COCO detection: all boxes of a category in a picture",
    source="cocodataset.org, instances_*.json; pictures in train2017 and so on",
    licence="CC BY 4.0 (annotations); images: Flickr terms",
    files=("instances*.json",),
    convert=convert,
    rows=rows,
)
