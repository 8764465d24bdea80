"""T-GRPO against GRPO on clips: a question about the order of the frames, and one that is not."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from random import Random

import numpy as np

from datasets_prep.generators.video import write_mp4
from mmr1.types import MediaRef, Sample
from scripts.claims.claim import Measured, Trial
from scripts.claims.tasks import WORDS, Scan, Splits, made, question, scans, two
from scripts.claims.training import by_kind, measured, newest, taught, train

RL, SFT = (Path(__file__).with_name(f"{name}.yaml") for name in ("rl", "sft"))
FIRST, LARGER = "first", "larger"
QUESTIONS = {FIRST: "Which digit comes first?", LARGER: "Which digit is larger?"}
SIZES = {"sft": (60, 60), "rl": (192, 192), "eval": (500, 250)}
"""Clips with the question about order, and with the other one."""
FRAMES_EACH, FPS = 2, 2
Clip = tuple[str, Scan, Scan]
"""What is asked, and the digits in their order."""


def run(trial: Trial) -> Measured:
    shared = trial.folder.parent
    data = made(shared / "data", partial(build, trial.start, trial.seed))
    reader = newest(trial.start / "sft")
    model = taught(SFT, shared / "sft", reader, data / "sft.jsonl", data, trial)
    train(trial, RL, trial.overrides, model, data)
    found = measured(trial.folder / "run")
    return replace(found, numbers={**found.numbers, **lost(trial.folder / "run/eval")})


def lost(folder: Path) -> dict[str, float]:
    """Accuracies by question, in order and shuffled, and the share that shuffling takes."""
    numbers = by_kind(folder, kind)
    for asked in (f"{mode}_{name}" for mode in ("greedy", "sampled") for name in QUESTIONS):
        numbers[f"{asked}_lost"] = 1 - numbers[f"{asked}_shuffled"] / numbers[asked]
    return numbers


def kind(name: str) -> str:
    """Of an id.

    >>> kind("first-eval-0001"), kind("first-eval-0001-shuffled")
    ('first', 'first_shuffled')
    """
    return name.partition("-")[0] + ("_shuffled" if name.endswith("-shuffled") else "")


def build(start: Path, seed: int, folder: Path) -> Splits:
    """Clips of 4 frames. Those held out are asked about twice: in order, and shuffled."""
    rng = Random(seed)
    splits: dict[str, list[Sample]] = {}
    for split, counts in SIZES.items():
        pool = scans(start, split)
        asked = [name for name, n in zip(QUESTIONS, counts, strict=True) for _ in range(n)]
        clips = [(name, *two(rng, pool)) for name in asked]
        splits[split] = [s for i, clip in enumerate(clips) for s in samples(folder, split, i, clip)]
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
    yield question(name, [shown], QUESTIONS[asked], answer, thought)
    if split == "eval":
        mixed = replace(shown, options={**shown.options, "shuffle": number})
        yield question(f"{name}-shuffled", [mixed], QUESTIONS[asked], answer)
