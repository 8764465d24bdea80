"""Short MP4 videos: which way does it move, which came first, from when to when is it there?"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import av
import numpy as np

from datasets_prep.generators import Generator
from datasets_prep.generators.common import WORDS, ask, demonstrate, numbered_splits, sample
from datasets_prep.generators.digits import SIDE, draw, load_scans
from mmr1.types import MediaRef, Message, Sample

SIZES = {"sft": 120, "rl": 800, "eval": 300}
SQUARE = 14
"""Pixels; the side of what moves and of what appears."""
STEPS = {"left": (-1, 0), "right": (1, 0), "up": (0, -1), "down": (0, 1)}

X264 = {"crf": "10", "preset": "ultrafast", "threads": "1"}

Clip = tuple[np.ndarray, int]
"""Frames ``[T, SIDE, SIDE, 3]`` uint8, and frames per second."""


def write_mp4(path: Path, frames: np.ndarray, fps: int) -> None:
    """H.264 in MP4, nearly without loss; the same frames give the same bytes."""
    with av.open(str(path), "w") as container:
        stream = container.add_stream("libx264", rate=fps, options=X264)
        stream.height, stream.width = frames.shape[1:3]
        stream.pix_fmt = "yuv420p"
        for picture in frames:
            container.mux(stream.encode(av.VideoFrame.from_ndarray(picture, format="rgb24")))
        container.mux(stream.encode())


def noise(rng: np.random.Generator, frames: int) -> np.ndarray:
    """A dark, unquiet background."""
    return rng.integers(0, 60, (frames, SIDE, SIDE, 1)).repeat(3, axis=3).astype(np.uint8)


def moving_square(rng: np.random.Generator, direction: str, frames: int = 8) -> Clip:
    """A square that crosses the picture, and a second one that rests."""
    clip = noise(rng, frames)
    room = SIDE - SQUARE
    across, down = STEPS[direction]
    start, rest = rng.integers(0, room + 1, 2), rng.integers(0, room + 1, 2)
    clip[:, rest[1] : rest[1] + SQUARE, rest[0] : rest[0] + SQUARE] = (90, 90, 160)
    for index in range(frames):
        way = round(index * room / (frames - 1))
        x = (way if across > 0 else room - way) if across else int(start[0])
        y = (way if down > 0 else room - way) if down else int(start[1])
        clip[index, y : y + SQUARE, x : x + SQUARE] = (240, 220, 80)
    return clip, 2


def appearing_square(rng: np.random.Generator, start: int, end: int, frames: int = 8) -> Clip:
    """A square that is there from second ``start`` to second ``end``, one frame a second."""
    clip = noise(rng, frames)
    x, y = (int(v) for v in rng.integers(0, SIDE - SQUARE + 1, 2))
    clip[start:end, y : y + SQUARE, x : x + SQUARE] = (240, 220, 80)
    return clip, 1


def two_scans(first: np.ndarray, second: np.ndarray) -> Clip:
    """Two handwritten digits one after the other, two frames each: one temporal patch each."""
    pictures = [np.asarray(draw(scan)) for scan in (first, second) for _ in range(2)]
    return np.stack(pictures), 2


def build(folder: Path, seed: int) -> Mapping[str, Sequence[Sample]]:
    """Three tasks with separate splits: ``direction-sft``, ``order-rl``, ``span-eval``, …"""
    rng = np.random.default_rng(seed)
    scans, labels = load_scans()
    shuffled = rng.permutation(len(scans))
    videos = folder / "videos"
    videos.mkdir()

    def direction(split: str) -> tuple[Clip, str, str, object, str]:
        way = str(rng.choice(sorted(STEPS)))
        question = "Which way does the yellow square move?"
        return moving_square(rng, way), question, f"It moves {way}.", way, "exact"

    def order(split: str) -> tuple[Clip, str, str, object, str]:
        pool = shuffled[:500] if split.endswith("eval") else shuffled[500:]
        first, second = _two_different(rng, pool, labels)
        names = [int(labels[i]) for i in (first, second)]
        thought = f"First {WORDS[names[0]]} then {WORDS[names[1]]}."
        question = "Which digit comes first?"
        return two_scans(scans[first], scans[second]), question, thought, str(names[0]), "math"

    def span(split: str) -> tuple[Clip, str, str, object, str]:
        start, end = sorted(int(v) for v in rng.choice(9, 2, replace=False))
        question = "From which second to which is the square there?"
        thought = f"It comes at {start} and goes at {end}."
        return appearing_square(rng, start, end), question, thought, [start, end], "tiou"

    makers: dict[str, Callable[[str], tuple[Clip, str, str, object, str]]] = {
        "direction": direction,
        "order": order,
        "span": span,
    }

    def make(split: str, number: int, with_demonstration: bool) -> Sample:
        (frames, fps), question, thought, answer, task = makers[split.partition("-")[0]](split)
        path = videos / f"{split}-{number:04d}.mp4"
        write_mp4(path, frames, fps)
        clip = MediaRef("video", path, size=(SIDE, SIDE), options={"fps": float(fps)})
        messages: list[Message] = [ask([clip], question)]
        if with_demonstration:
            messages.append(demonstrate(thought, str(answer)))
        seconds = len(frames) / fps
        name = f"video-{split}-{number:04d}"
        return sample(name, messages, answer, task, "video", duration=seconds)

    sizes = {f"{kind}-{split}": size for kind in makers for split, size in SIZES.items()}
    return numbered_splits(sizes, make)


def _two_different(
    rng: np.random.Generator, pool: np.ndarray, labels: np.ndarray
) -> tuple[int, int]:
    """Two scans of different digits."""
    while True:
        first, second = (int(i) for i in rng.choice(pool, 2, replace=False))
        if labels[first] != labels[second]:
            return first, second


VIDEO = Generator(
    name="video",
    description="short MP4s: direction of a square, order of two digits, time span of a square",
    source="drawn by mmr1; the digits are scikit-learn load_digits",
    licence="Apache-2.0; the digits CC BY 4.0 (UCI Machine Learning Repository)",
    build=build,
)
