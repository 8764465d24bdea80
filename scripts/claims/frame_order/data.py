"""Clips with a question about the order of the frames, and with one that is not."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from random import Random

import numpy as np

from datasets_prep.generators.video import write_mp4
from mmr1.types import MediaRef, Sample
from scripts.claims.tasks import WORDS, Scan, Splits, question, scans, two

FIRST, LARGER = "first", "larger"
QUESTIONS = {FIRST: "Which digit comes first?", LARGER: "Which digit is larger?"}
SIZES = {"sft": (60, 60), "rl": (192, 192), "eval": (500, 250)}
"""Clips with the question about order, and with the other one."""
FRAMES_EACH, FPS = 2, 2
Clip = tuple[str, Scan, Scan]
"""What is asked, and the digits in their order."""


def build(start: Path, seed: int, folder: Path) -> Splits:
    """Clips of 4 frames. Those held out are asked about twice: in order, and shuffled."""
    rng = Random(seed)
    splits: dict[str, list[Sample]] = {}
    for split, counts in SIZES.items():
        pool = scans(start, split)
        asked = [name for name, n in zip(QUESTIONS, counts, strict=True) for _ in range(n)]
        clips = [(name, *two(rng, pool)) for name in asked]
        order = list(range(len(clips)))
        if split == "eval":  # both questions are in the part of it that ``--quick`` reads
            places = [i / n for n in counts for i in range(n)]
            order.sort(key=places.__getitem__)
        splits[split] = [s for i in order for s in samples(folder, split, i, clips[i])]
    return splits


def samples(folder: Path, split: str, number: int, clip: Clip) -> Iterator[Sample]:
    asked, first, second = clip
    path = folder / f"{split}-{number:04d}.mp4"
    frames = [np.asarray(s.picture) for s in (first, second) for _ in range(FRAMES_EACH)]
    write_mp4(path, np.stack(frames), FPS)
    answer = first.digit if asked == FIRST else max(first.digit, second.digit)
    thought = f"The digit is {WORDS[answer]}." if split == "sft" else ""
    pixels = first.picture.width * first.picture.height
    options = {"fps": float(FPS), "min_pixels": pixels, "max_pixels": pixels}
    shown = MediaRef("video", path, size=first.picture.size, options=options)
    name = f"{asked}-{split}-{number:04d}"
    yield question(name, [shown], QUESTIONS[asked], answer, thought, asked=asked)
    if split == "eval":
        mixed = replace(shown, options={**shown.options, "shuffle": number})
        meta = {"asked": f"{asked}_shuffled"}
        yield question(f"{name}-shuffled", [mixed], QUESTIONS[asked], answer, **meta)
