"""A video of handwritten digits, one a second, of which the model is shown the two dark ends."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np

from datasets_prep.generators import Generator
from datasets_prep.generators.common import ask, said, sample, tool_call
from datasets_prep.generators.digits import SIDE, draw, load_scans, split_indices
from datasets_prep.generators.video import write_mp4
from mmr1.types import MediaRef, Message, Sample

SECONDS = 9
"""One frame each. The first and the last are dark, the others have a digit."""
SIZES = {"sft": 120, "rl": 800, "eval": 300}
"""Videos of each split; no scan is in two of them."""
GUESSES, READINGS = 2, 2
"""For each demonstration that asks for a frame: how many guess, and how many read a digit."""


def build(folder: Path, seed: int) -> Mapping[str, Sequence[Sample]]:
    """A video of the demonstrations is looked into, guessed, and the frame read by itself."""
    rng = np.random.default_rng(seed)
    scans, labels = load_scans()
    pools = split_indices(labels, seed)
    for name in ("videos", "frames"):
        (folder / name).mkdir()

    def asked(split: str, number: int) -> tuple[Sample, int]:
        shown = rng.choice(pools[split], SECONDS - 2, replace=False)
        dark = np.zeros((SIDE, SIDE, 3), np.uint8)
        frames = [dark, *(np.asarray(draw(scans[index])) for index in shown), dark]
        path = folder / f"videos/{split}-{number:04d}.mp4"
        write_mp4(path, np.stack(frames), 1)
        second = int(rng.integers(1, SECONDS - 1))
        ends = {"nframes": 2, "min_pixels": 28 * 28, "max_pixels": 28 * 28}
        video = MediaRef("video", path, size=(SIDE, SIDE), options=ends)
        index = int(shown[second - 1])
        question = ask([video], f"Which digit is there at second {second}?")
        named = sample(
            f"frame-{split}-{number:04d}", [question], str(labels[index]), "math", "frame",
            second=second, duration=float(SECONDS),
        )  # fmt: skip
        return named, index

    def demonstrations(number: int) -> Iterator[Sample]:
        question, index = asked("sft", number)
        path = folder / f"frames/{number:04d}.png"
        draw(scans[index]).save(path)
        picture = MediaRef("image", path, size=(SIDE, SIDE))
        call = said(tool_call("frame", seconds=question.meta["second"]))
        answer = said(f"<answer>{question.answer}</answer>")
        ways = {
            "look": (1, [*question.messages, call, Message("tool", (picture,)), answer]),
            "guess": (GUESSES, [*question.messages, answer]),
            "read": (READINGS, [ask([picture], "Which digit is this?"), answer]),
        }
        for way, (count, messages) in ways.items():
            for copy in range(count):
                name = f"{question.id}-{way}-{copy}"
                yield sample(name, messages, question.answer, "math", "frame", **question.meta)

    return {
        "sft": [shown for number in range(SIZES["sft"]) for shown in demonstrations(number)],
        "rl": [asked("rl", number)[0] for number in range(SIZES["rl"])],
        "eval": [asked("eval", number)[0] for number in range(SIZES["eval"])],
    }


FRAME = Generator(
    name="frame",
    description="a video of a digit a second, which cannot be read without the tool frame",
    source="scikit-learn load_digits (UCI Optical Recognition of Handwritten Digits, test part)",
    licence="CC BY 4.0 (UCI Machine Learning Repository)",
    build=build,
)
