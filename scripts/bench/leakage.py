"""Measure how ``mmr1-data leakage`` recognises pictures: copies found, and false alarms.

    python scripts/bench/leakage.py FOLDER

FOLDER holds pictures (.jpg, .png). Every picture is changed in several ways, and looked for among
all. Of every two different pictures, those are counted that are taken for one; look at them, since
a collection may hold a picture twice.
"""

from __future__ import annotations

import argparse
import io
from collections.abc import Callable
from pathlib import Path

from PIL import Image, ImageEnhance, ImageOps

from datasets_prep.looks import ENOUGH, Index, Looks
from mmr1.types import MediaRef
from mmr1.vision.images import load_grey, load_image


def encoded(image: Image.Image, format: str, quality: int) -> Image.Image:
    buffer = io.BytesIO()
    image.save(buffer, format, quality=quality)
    return Image.open(buffer).convert("RGB")


def scaled(image: Image.Image, width: float, height: float) -> Image.Image:
    size = max(1, round(image.width * width)), max(1, round(image.height * height))
    return image.resize(size, Image.Resampling.BICUBIC)


def cut(image: Image.Image, share: float) -> Image.Image:
    x, y = round(image.width * share), round(image.height * share)
    return image.crop((x, y, image.width - x, image.height - y))


CHANGES: dict[str, Callable[[Image.Image], Image.Image]] = {
    "JPEG, quality 75": lambda image: encoded(image, "JPEG", 75),
    "JPEG, quality 30": lambda image: encoded(image, "JPEG", 30),
    "WebP, quality 50": lambda image: encoded(image, "WEBP", 50),
    "32 colours": lambda image: image.quantize(32).convert("RGB"),
    "grey": lambda image: image.convert("L"),
    "20 % darker": lambda image: ImageEnhance.Brightness(image).enhance(0.8),
    "30 % less contrast": lambda image: ImageEnhance.Contrast(image).enhance(0.7),
    "half the size": lambda image: scaled(image, 0.5, 0.5),
    "a quarter of the size": lambda image: scaled(image, 0.25, 0.25),
    "twice the size": lambda image: scaled(image, 2, 2),
    "80 % of the height": lambda image: scaled(image, 1, 0.8),
    "2 % cut off all around": lambda image: cut(image, 0.02),
    "a white margin of 2 %": lambda image: ImageOps.expand(
        image, round(0.02 * min(image.size)), "white"
    ),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--pictures", type=int, default=1000)
    parser.add_argument("--copies", type=int, default=300, help="pictures that are changed")
    args = parser.parse_args()
    paths = sorted(p for p in args.folder.rglob("*") if p.suffix in (".jpg", ".png"))
    paths = paths[:: max(1, len(paths) // args.pictures)][: args.pictures]
    images = [load_image(MediaRef("image", path)) for path in paths]
    # As the command loads them; the changed ones are made of the whole pictures.
    looks = Looks.of([load_grey(MediaRef("image", path), ENOUGH) for path in paths])
    index = Index(looks)
    taken_for_one = [
        (number, other)
        for number, found in enumerate(index.find(looks))
        for other in found.tolist()
        if other > number
    ]
    pairs = len(images) * (len(images) - 1) // 2
    print(f"{len(taken_for_one)} of {pairs:,} pairs of pictures are taken for one:")
    for one, other in taken_for_one:
        print(f"  {paths[one]} {paths[other]}")
    related = [{number} for number in range(len(images))]
    for one, other in taken_for_one:
        related[one].add(other)
        related[other].add(one)
    print("\n| change | found | also taken for another |\n|---|---|---|")
    copied = range(0, len(images), max(1, len(images) // args.copies))
    for name, change in CHANGES.items():
        found = index.find(Looks.of([change(images[number]) for number in copied]))
        hits = sum(n in f for n, f in zip(copied, found, strict=True))
        others = sum(bool(set(f.tolist()) - related[n]) for n, f in zip(copied, found, strict=True))
        print(f"| {name} | {hits / len(copied):.3f} | {others} of {len(copied)} |", flush=True)


if __name__ == "__main__":
    main()
