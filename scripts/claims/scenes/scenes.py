"""Drawn pictures to learn from, and held-out ones in the same look and in others."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from datasets_prep.generators.common import ask, demonstrate, sample
from mmr1.types import MediaRef, Sample
from scripts.claims.tasks import Splits

PLAIN = "plain"
SIZES = {"start": 200, "rl": 480, "eval": 500}
"""Scenes: for the cold start, for both arms, and held out. Each that is held out is drawn in the
usual look and, by turns, in one of the others."""


@dataclass(frozen=True, slots=True)
class Scene:
    """A question and what it is about.

    Attributes:
        thought: Reasoning of the demonstration, which ends with ``said``.
        draw: The picture in a look.
    """

    question: str
    answer: Any
    thought: str
    said: str
    draw: Callable[[str, np.random.Generator], Image.Image]


@dataclass(frozen=True, slots=True)
class Task:
    """Questions about drawn scenes.

    Attributes:
        kind: The task type of its records, which names the reward function too.
        scene: A scene at random.
        looks: Looks that are never trained on.
        options: Options of the images.
    """

    kind: str
    scene: Callable[[np.random.Generator], Scene]
    looks: Sequence[str]
    options: Mapping[str, Any]


def build_scenes(task: Task, start: Path, seed: int, folder: Path) -> Splits:
    """``start`` and ``sft`` with demonstrations; ``rl`` has the pictures of ``sft``."""
    rng = np.random.default_rng(seed)
    (folder / "images").mkdir()
    splits: dict[str, list[Sample]] = {"start": [], "sft": [], "rl": [], "eval": []}
    for split, size in SIZES.items():
        for number in range(size):
            scene = task.scene(rng)
            looks = [PLAIN]
            if split == "eval":
                looks.append(task.looks[number % len(task.looks)])
            for look in looks:
                image = saved(folder, f"{look}-{split}-{number:04d}", scene.draw(look, rng), task)
                if split != "start":
                    splits[split].append(record(task, scene, look, image))
                if split != "eval":
                    shown = "start" if split == "start" else "sft"
                    splits[shown].append(record(task, scene, look, image, shown=True))
    return splits


def saved(folder: Path, name: str, picture: Image.Image, task: Task) -> MediaRef:
    path = folder / "images" / f"{name}.png"
    picture.save(path)
    return MediaRef("image", path, size=picture.size, options=task.options)


def record(task: Task, scene: Scene, look: str, image: MediaRef, shown: bool = False) -> Sample:
    """The record of a scene; its id is the name of the picture, which begins with the look."""
    messages = [ask([image], scene.question)]
    if shown:
        messages.append(demonstrate(scene.thought, scene.said))
    return sample(image.path.stem, messages, scene.answer, task.kind, "claims", look=look)
