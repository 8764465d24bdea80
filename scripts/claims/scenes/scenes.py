"""RL against SFT on the same drawn pictures, tested on pictures in their look and in others."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
from PIL import Image

from datasets_prep.generators.common import ask, demonstrate, sample
from mmr1.types import MediaRef, Sample
from scripts.claims.claim import Measured, Trial
from scripts.claims.tasks import Splits, made
from scripts.claims.training import by_kind, evaluated, measured, taught, train

BY_SFT = "SFT"
PLAIN = "plain"
SIZES = {"start": 200, "rl": 480, "eval": 500}
"""Scenes: for the cold start, for both arms, and held out. Each that is held out is drawn in the
usual look and, by turns, in one of the others."""


@dataclass(frozen=True, slots=True)
class Scene:
    """A question and what it is about.

    Attributes:
        thought: Of the demonstration, which ends with ``said``.
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
        folder: The claim's, with ``start.yaml``, ``sft.yaml`` and ``rl.yaml``.
        kind: The task type of its records, which names the reward function too.
        scene: A scene at random.
        looks: Those that are never trained on.
        options: Of the pictures.
    """

    folder: Path
    kind: str
    scene: Callable[[np.random.Generator], Scene]
    looks: Sequence[str]
    options: Mapping[str, Any]


def run_task(task: Task, trial: Trial) -> Measured:
    """Both arms of a seed share data and cold start."""
    shared = trial.folder.parent
    data = made(shared / "data", partial(build, task, trial.seed))
    random_model, rl = trial.start / "model", task.folder / "rl.yaml"
    start_yaml, sft = task.folder / "start.yaml", task.folder / "sft.yaml"
    start = taught(start_yaml, shared / "start", random_model, data / "start.jsonl", data, trial)
    if trial.arm == BY_SFT:
        model = taught(sft, trial.folder / "run", start, data / "sft.jsonl", data, trial)
        folder = trial.folder / "eval"
        found = Measured(evaluated(trial, rl, model, folder, data))
    else:
        train(trial, rl, (), start, data)
        rewards = f"reward/{task.kind}"
        found, folder = measured(trial.folder / "run", rewards, rewards), trial.folder / "run/eval"
    return replace(found, numbers={**found.numbers, **generalised(folder, task.looks)})


def generalised(folder: Path, looks: Sequence[str]) -> dict[str, float]:
    """Scores by look, over the other looks, and how far these are below the usual one."""
    numbers = by_kind(folder, lambda name: name.partition("-")[0], "score")
    for mode in ("greedy", "sampled"):
        numbers[f"{mode}_other"] = fmean(numbers[f"{mode}_{look}"] for look in looks)
        numbers[f"{mode}_drop"] = numbers[f"{mode}_{PLAIN}"] - numbers[f"{mode}_other"]
    return numbers


def build(task: Task, seed: int, folder: Path) -> Splits:
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
                    splits[split].append(record(task, scene, image))
                if split != "eval":
                    shown = "start" if split == "start" else "sft"
                    splits[shown].append(record(task, scene, image, shown=True))
    return splits


def saved(folder: Path, name: str, picture: Image.Image, task: Task) -> MediaRef:
    path = folder / "images" / f"{name}.png"
    picture.save(path)
    return MediaRef("image", path, size=picture.size, options=task.options)


def record(task: Task, scene: Scene, image: MediaRef, shown: bool = False) -> Sample:
    """Its id is the name of the picture, which begins with the look."""
    messages = [ask([image], scene.question)]
    if shown:
        messages.append(demonstrate(scene.thought, scene.said))
    return sample(image.path.stem, messages, scene.answer, task.kind, "claims")
