"""Make your own dataset: write images and answers as records, and check them.

python scripts/examples/custom_dataset.py [FOLDER]      # default: runs/my_dataset
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from PIL import Image

from mmr1.data.record import read_records, write_records
from mmr1.types import MediaRef, Message, Sample, TextPart


def samples(folder: Path, count: int) -> Iterator[Sample]:
    """Images that are bright on one side: which one? Use your own files and answers here."""
    chance = np.random.default_rng(0)
    for number in range(count):
        side = ("left", "right")[number % 2]
        pixels = chance.integers(0, 60, (56, 56, 3), dtype=np.uint8)
        half = slice(0, 28) if side == "left" else slice(28, 56)
        pixels[:, half] += 150
        path = folder / "images" / f"{number}.png"
        Image.fromarray(pixels).save(path)
        picture = MediaRef("image", path, size=(56, 56))
        question = TextPart("Which side is bright, left or right?")
        yield Sample(
            id=str(number),
            messages=(Message("user", (picture, question)),),
            answer=side,
            task="exact",
        )


def main(folder: Path, count: int = 32) -> None:
    (folder / "images").mkdir(parents=True, exist_ok=True)
    write_records(folder / "train.jsonl", samples(folder, count))
    read = read_records(folder / "train.jsonl")  # every record checked
    print(f"{len(read)} records in {folder}/train.jsonl; the first: {read[0].question}")
    print(f"mmr1 train run.yaml data.train={folder}/train.jsonl 'rewards={{exact: {{}}}}'")


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "runs/my_dataset"))
