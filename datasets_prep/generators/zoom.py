"""A handwritten digit on a large sheet, which cannot be read before a tool shows its part."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
from PIL import Image

from datasets_prep.generators import Generator
from datasets_prep.generators.common import ask, said, sample, tool_call
from datasets_prep.generators.digits import load_scans, split_indices
from mmr1.types import MediaRef, Message, Sample

SHEET, PAPER, DIGIT = 448, 160, 32
"""Pixels of a side: of the sheet, of the paper on it, and of the digit in the paper's middle."""
SEEN = 28
"""Pixels of a side that the model sees of a sheet: a digit is 2 of them high."""
DARK, GREY = 20, 128
"""The sheet and the paper."""
QUESTION = "Which digit is this?"
GUESSES, READINGS = 2, 2
"""For each demonstration that looks: how many guess, and how many read the digit cut out."""


def sheet(scan: np.ndarray, part: int) -> Image.Image:
    """A dark sheet with grey paper in one of its four parts, and a digit in the paper's middle.

    The digit is printed in a fine chequered pattern, ink lighter and darker than the paper by as
    much. Made smaller, the sheet is the same whatever the digit. Plain ink could still be told by
    its brightness: a classifier reads such digits with 2 pixels a side.
    """
    grey = np.full((SHEET, SHEET), float(DARK))
    grey[within(part, PAPER)] = GREY
    chequer = np.kron([[1, -1], [-1, 1]], np.ones((2, 2)))
    grey[within(part, DIGIT)] += (255 - GREY) * np.kron(scan / 16, chequer)
    return Image.fromarray(np.round(grey).astype(np.uint8))


def within(part: int, side: int) -> tuple[slice, slice]:
    """The rows and columns of a square in the middle of one of the four parts."""
    top, left = (SHEET // 4 * (1 + 2 * place) - side // 2 for place in divmod(part, 2))
    return slice(top, top + side), slice(left, left + side)


def box_of(part: int) -> list[int]:
    """The digit's box, in pixels of the sheet as the model sees it."""
    rows, columns = within(part, DIGIT)
    ends = (columns.start, rows.start, columns.stop, rows.stop)
    return [end * SEEN // SHEET for end in ends]


def build(folder: Path, seed: int) -> Mapping[str, Sequence[Sample]]:
    """A scan of the demonstrations is on one sheet, which they look at or guess, and cut out."""
    rng = np.random.default_rng(seed)
    scans, labels = load_scans()
    for name in ("sheets", "parts"):
        (folder / name).mkdir()

    def asked(index: int) -> Sample:
        part, path = int(rng.integers(4)), folder / f"sheets/{index:04d}.png"
        sheet(scans[index], part).save(path)
        small = {"min_pixels": SEEN**2, "max_pixels": SEEN**2}
        shown = MediaRef("image", path, size=(SHEET, SHEET), options=small)
        messages = [ask([shown], QUESTION)]
        return sample(f"zoom-{index:04d}", messages, str(labels[index]), "math", "zoom", part=part)

    def demonstrations(index: int) -> Iterator[Sample]:
        asks, path = asked(index), folder / f"parts/{index:04d}.png"
        part = asks.meta["part"]
        Image.fromarray(np.asarray(sheet(scans[index], part))[within(part, DIGIT)]).save(path)
        cut = MediaRef("image", path, size=(DIGIT, DIGIT))
        answer = said(f"<answer>{labels[index]}</answer>")
        ways = {
            "look": [
                *asks.messages,
                said(tool_call("zoom", box=box_of(part))),
                Message("tool", (cut,)),
                answer,
            ],
            "guess": [*asks.messages, answer],
            "read": [ask([cut], QUESTION), answer],
        }
        for way, count in {"look": 1, "guess": GUESSES, "read": READINGS}.items():
            for number in range(count):
                yield replace(asks, id=f"{asks.id}-{way}-{number}", messages=tuple(ways[way]))

    splits = split_indices(labels, seed)
    return {
        "sft": [shown for index in splits["sft"] for shown in demonstrations(index)],
        "rl": [asked(index) for index in splits["rl"]],
        "eval": [asked(index) for index in splits["eval"]],
    }


ZOOM = Generator(
    name="zoom",
    description="a handwritten digit on a sheet, which cannot be read without the tool zoom",
    source="scikit-learn load_digits (UCI Optical Recognition of Handwritten Digits, test part)",
    licence="CC BY 4.0 (UCI Machine Learning Repository)",
    build=build,
)
