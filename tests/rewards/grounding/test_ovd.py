"""Open-vocabulary detection against COCO's average precision, computed step by step."""

from __future__ import annotations

import json
import random
from typing import Any

import numpy as np
import pytest

from mmr1.rewards.builtin.ovd import ovd
from mmr1.types import Status

Entry = dict[str, Any]
THRESHOLDS = np.linspace(0.5, 0.95, 10)
RECALLS = np.linspace(0.0, 1.0, 101)


def box(label: str, *corners: float) -> Entry:
    return {"bbox_2d": list(corners), "label": label}


def answer(entries: list[Entry]) -> str:
    return f"<answer>```json\n{json.dumps(entries)}\n```</answer>"


def overlap(a: list[float], b: list[float]) -> float:
    """IoU by the area of the boxes' common pixels, of whole numbers."""
    pixels = [{(x, y) for x in range(x1, x2) for y in range(y1, y2)} for x1, y1, x2, y2 in (a, b)]
    return len(pixels[0] & pixels[1]) / len(pixels[0] | pixels[1])


def coco_precision(found: list[list[float]], gold: list[list[float]], threshold: float) -> float:
    """AP as COCO's evaluation has it: matches, cumulated sums, an envelope, a search by recall."""
    matched, right = [False] * len(gold), []
    for detection in found[:100]:
        best, at = min(threshold, 1 - 1e-10), -1
        for index, wanted in enumerate(gold):
            if not matched[index] and overlap(detection, wanted) >= best:
                best, at = overlap(detection, wanted), index
        if at >= 0:
            matched[at] = True
        right.append(at >= 0)
    if not right:
        return 0.0
    hits = np.cumsum(right)
    recall, precision = hits / len(gold), hits / np.arange(1, len(right) + 1)
    for index in range(len(precision) - 1, 0, -1):
        precision[index - 1] = max(precision[index - 1], precision[index])
    places = np.searchsorted(recall, RECALLS - 1e-9, side="left")
    return float(np.mean([precision[i] if i < len(precision) else 0.0 for i in places]))


def naive(found: list[Entry], gold: list[Entry]) -> float:
    def of(entries: list[Entry], label: str) -> list[list[float]]:
        return [entry["bbox_2d"] for entry in entries if entry["label"] == label]

    labels = {entry["label"] for entry in gold}
    means = [
        np.mean([coco_precision(of(found, label), of(gold, label), t) for t in THRESHOLDS])
        for label in labels
    ]
    return float(np.mean(means)) * min(1.0, len(gold) / len(found))


def drawn(rng: random.Random, count: int) -> list[Entry]:
    corners = [(rng.randrange(9), rng.randrange(9)) for _ in range(count)]
    return [
        box(rng.choice("abc"), x, y, x + rng.randrange(3, 9), y + rng.randrange(3, 9))
        for x, y in corners
    ]


@pytest.mark.parametrize("seed", range(40))
def test_reward_equals_coco_step_by_step(seed: int) -> None:
    rng = random.Random(seed)
    gold = drawn(rng, rng.randrange(1, 6))
    found = [*rng.sample(gold, rng.randrange(len(gold))), *drawn(rng, rng.randrange(1, 6))]
    rng.shuffle(found)
    assert ovd(answer(found), gold) == pytest.approx(naive(found, gold))


def test_boxes_too_many_divide_the_reward() -> None:
    gold = [box("cat", 0, 0, 9, 9)]
    assert ovd(answer(gold), gold) == 1.0
    assert ovd(answer([*gold, *[box("dog", 0, 0, 9, 9)] * 3]), gold) == 0.25
    assert ovd(answer(gold), [*gold, box("dog", 0, 0, 9, 9)]) == 0.5  # one label of two, no factor


def test_none_and_empty_list_are_no_boxes() -> None:
    gold = [box("cat", 0, 0, 9, 9)]
    for nothing in ("<answer>None</answer>", answer([])):
        assert ovd(nothing, []) == ovd(nothing, "None") == 1.0
        assert ovd(nothing, gold) == 0.0
    assert ovd(answer(gold), []) == 0.0


def test_answer_without_labels_is_unread() -> None:
    gold = [box("cat", 0, 0, 9, 9)]
    for text in ("[[0, 0, 9, 9]]", "a cat", '{"label": "cat"}'):
        assert ovd(f"<answer>{text}</answer>", gold).status is Status.UNREAD
    assert ovd("no tags", gold).status is Status.NO_ANSWER


def test_boxes_are_scaled_from_the_space_of_the_model() -> None:
    gold, seen = [box("cat", 20, 20, 100, 80)], [box("cat", 10, 10, 50, 40)]
    sizes = {"original_sizes": [(200, 100)], "media_sizes": [(100, 50)]}
    assert ovd(answer(seen), gold, "resized", **sizes) == 1.0
