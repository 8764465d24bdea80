"""Two tones, one after the other: which is higher? Held-out tones have other frequencies."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from datasets_prep.generators import Generator
from datasets_prep.generators.common import ask, said, sample
from mmr1.types import MediaRef, Sample
from mmr1.vision.audio import wav

RATE = 16_000
LOWEST_HZ, SEMITONES = 220.0, 36
HELD_OUT = 4
"""Every fourth semitone is in no split but ``eval`` and ``silent``."""
SIZES = {"sft": 40, "rl": 800, "eval": 300}
SECONDS = (0.25, 0.35)
"""Of a tone; a tenth of a second of silence is between the two."""


def hertz(semitone: int) -> float:
    """The frequency of a semitone of the range, from 0 on."""
    return float(LOWEST_HZ * 2 ** (semitone / 12))


def pool(split: str) -> list[int]:
    """The semitones of a split."""
    held_out = split not in ("sft", "rl")
    return [n for n in range(SEMITONES) if (n % HELD_OUT == 2) == held_out]


def build(folder: Path, seed: int) -> Mapping[str, Sequence[Sample]]:
    """``silent`` has the questions of ``eval``, and sound of the same length that is all 0."""
    rng = np.random.default_rng(seed)
    (folder / "sounds").mkdir()

    def tone(semitone: int) -> np.ndarray:
        time = np.arange(int(rng.uniform(*SECONDS) * RATE)) / RATE
        loudness, phase = rng.uniform(0.2, 0.6), rng.uniform(0, 2 * np.pi)
        fade = np.minimum(1, np.minimum(time, time[::-1]) / 0.01)
        return loudness * fade * np.sin(2 * np.pi * hertz(semitone) * time + phase)

    def asked(split: str, number: int) -> Sample:
        answer = ("first", "second")[number % 2]
        low, high = sorted(rng.choice(pool(split), 2, replace=False).tolist())
        order = (high, low) if answer == "first" else (low, high)
        gap = np.zeros(RATE // 10)
        heard = np.concatenate([tone(order[0]), gap, tone(order[1])])
        heard += rng.normal(0, 0.01, len(heard))
        return written(f"{split}-{number:04d}", heard, answer, [hertz(n) for n in order])

    def written(name: str, heard: np.ndarray, answer: str, tones: list[float]) -> Sample:
        path = folder / f"sounds/{name}.wav"
        path.write_bytes(wav(heard.astype(np.float32), RATE))
        question = ask([MediaRef("audio", path)], "Which tone is higher, the first or the second?")
        turns = [question]
        if name.startswith("sft"):
            turns.append(said(f"<answer>{answer}</answer>"))
        return sample(f"tones-{name}", turns, answer, "exact", "tones", hertz=tones)

    splits = {split: [asked(split, n) for n in range(size)] for split, size in SIZES.items()}
    silent = []
    for number, heard in enumerate(splits["eval"]):
        length = (folder / f"sounds/eval-{number:04d}.wav").stat().st_size // 4 - 11
        name = f"silent-{number:04d}"
        silent.append(written(name, np.zeros(length), heard.answer, heard.meta["hertz"]))
    return {**splits, "silent": silent}


TONES = Generator(
    name="tones",
    description="two tones one after the other: which is higher?",
    source="drawn by mmr1",
    licence="Apache-2.0",
    build=build,
)
