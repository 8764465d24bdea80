from __future__ import annotations

import json
import math
import time
from itertools import permutations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mmr1.boxes import Box, to_original
from mmr1.config import ScoringConfig, read_rewards
from mmr1.rewards import BadGoldError, Job, build_composite_reward
from mmr1.rewards.builtin.iou import gold_boxes, iou, iou_of, matched_iou
from mmr1.rewards.builtin.temporal import segment_iou, tiou
from tests.rewards.helpers import item, think, value_of

GOLD = [10, 20, 110, 220]
boxes = st.tuples(*[st.floats(0, 1000)] * 4)


@pytest.mark.parametrize(
    "written",
    ["[10, 20, 110, 220]", "[[10, 20, 110, 220]]", "(10,20),(110,220)", "10.0 20.0 110.0 220.0",
     '{"bbox_2d": [10, 20, 110, 220]}', '```json\n[{"bbox_2d": [10,20,110,220], "is": "c"}]\n```',
     "<|box_start|>(10,20),(110,220)<|box_end|>", '[{"bbox": [10.0,20.0,110.0,220.0]}]',
     "The box is [10, 20, 110, 220].", 'The box is {"bbox_2d": [10, 20, 110, 220]}',
     "{'bbox_2d': [10, 20, 110, 220]}", '```json\n[{"bbox_2d": [10, 20, 110, 220]}]',
     "x1=10, y1=20, x2=110, y2=220", '{"x1": 10, "y1": 20, "x2": 110, "y2": 220}',
     '{"objects": [{"bbox_2d": [10, 20, 110, 220]}]}'],
)  # fmt: skip
def test_ways_to_write_a_box(written: str) -> None:
    assert iou(think(written), GOLD) == 1.0


@pytest.mark.parametrize(
    "written",
    ["", "none", "[10, 20, 110]", "[110, 20, 10, 220]", "[10, 20, 10, 220]", "[1e999, 0, 1, 2]",
     "[NaN, 0, 1, 2]", "[]", '"text"', '{"x": 1}', "[" * 100_000, "[[10, 20], [110, 220]]"[:9]],
)  # fmt: skip
def test_what_is_no_box_scores_0(written: str) -> None:
    assert value_of(iou(think(written), GOLD)) == 0.0


def test_iou_by_hand() -> None:
    assert iou_of((0, 0, 2, 2), (1, 1, 3, 3)) == pytest.approx(1 / 7)
    assert iou_of((0, 0, 10, 10), (5, 0, 15, 10)) == pytest.approx(1 / 3)
    assert iou_of((0, 0, 1, 1), (1, 0, 2, 1)) == 0.0  # touching, in continuous areas
    assert iou_of((0.25, 0.25, 0.75, 0.75), (0, 0, 1, 1)) == pytest.approx(0.25)


@given(boxes, boxes)
def test_iou_is_symmetric_and_bounded(a: Box, b: Box) -> None:
    assert 0.0 <= iou_of(a, b) <= 1.0
    assert iou_of(a, b) == pytest.approx(iou_of(b, a))


@given(boxes, st.floats(0.1, 10))
def test_iou_does_not_change_with_scale(a: Box, factor: float) -> None:
    b = (a[0] + 1, a[1] + 1, a[2] + 3, a[3] + 2)
    scaled = [tuple(v * factor for v in box) for box in (a, b)]
    assert iou_of(*scaled) == pytest.approx(iou_of(a, b), abs=1e-6)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("space", "written", "sizes"),
    [
        ("original", [100, 50, 300, 150], {}),
        (
            "resized",
            [50, 25, 150, 75],
            {"original_sizes": [(1000, 500)], "media_sizes": [(500, 250)]},
        ),
        ("resized", [50, 25, 150, 75], {"image_size": (1000, 500), "resized_size": (500, 250)}),
        ("0-1000", [100, 100, 300, 300], {"original_sizes": [(1000, 500)]}),
        ("0-1", [0.1, 0.1, 0.3, 0.3], {"original_sizes": [(1000, 500)]}),
    ],
)
def test_each_space_is_scaled_once(space: str, written: list[float], sizes: dict) -> None:
    value = iou(think(json.dumps(written)), [100, 50, 300, 150], space=space, **sizes)
    assert value == pytest.approx(1.0)


def test_a_missing_size_is_an_error_and_not_a_0() -> None:
    with pytest.raises(ValueError, match="original image size"):
        iou(think("[1,2,3,4]"), [1, 2, 3, 4], space="resized")
    with pytest.raises(ValueError, match="known are original, resized"):
        to_original((0, 0, 1, 1), "pixels", None, None)  # type: ignore[arg-type]


def best_by_trying(actual: list[Box], gold: list[Box]) -> float:
    """Every assignment of the shorter list to the longer."""
    short, long = sorted((actual, gold), key=len)
    sums = [
        sum(iou_of(a, b) for a, b in zip(short, some, strict=True))
        for some in permutations(long, len(short))
    ]
    return max(sums) / len(long)


@given(st.lists(boxes, min_size=1, max_size=4), st.lists(boxes, min_size=1, max_size=4))
def test_the_matching_is_the_best_one(actual: list[Box], gold: list[Box]) -> None:
    assert matched_iou(actual, gold) == pytest.approx(best_by_trying(actual, gold))


def test_150_boxes_around_3_objects_are_not_paid() -> None:
    gold = [[0, 0, 10, 10], [20, 0, 30, 10], [40, 0, 50, 10]]
    spray = [[x, 0, x + 10, 10] for x in range(150)]
    assert iou(think(json.dumps(spray)), gold) == pytest.approx(3 / 150)


def test_objects_side_by_side() -> None:
    gold = [[x, 20, x + 20, 40] for x in (10, 110, 210, 310)]
    written = " ".join(json.dumps({"bbox_2d": box}) for box in gold)
    assert iou(think(written), gold) == 1.0


def test_no_box_and_none_asked_for() -> None:
    assert iou(think("[]"), []) == 1.0
    assert iou(think("[[0, 0, 10, 10]]"), []) == 0.0


def test_a_threshold_pays_all_or_nothing() -> None:
    assert iou(think("[0, 0, 10, 5]"), [0, 0, 10, 10], threshold=0.5) == 1.0
    assert iou(think("[0, 0, 10, 4]"), [0, 0, 10, 10], threshold=0.5) == 0.0


def test_ten_thousand_boxes() -> None:
    """Against a few they are cheap; against many they are matched in the sandbox."""
    many = [[x, 0, x + 1, 1] for x in range(10_000)]
    start = time.monotonic()
    config = read_rewards({"iou": {}}), ScoringConfig(timeout_s=20.0, workers=1)
    with build_composite_reward(*config) as scorer:
        few, half = scorer.score(
            [
                item(think(json.dumps(many)), many[:3]),
                item(think(json.dumps(many[:300])), many[:600]),
            ]
        )
    assert few.value == pytest.approx(3 / 10_000)
    assert half.value == pytest.approx(0.5)
    assert time.monotonic() - start < 25
    assert isinstance(iou(think(json.dumps(many)), many), Job)


@pytest.mark.parametrize(
    "gold", [None, "", [1, 2, 3], [3, 4, 1, 2], [[0, 0, 1, 1], [0, 0, 0, 1]], [math.nan] * 4, "cat"]
)
def test_golds_that_are_no_boxes(gold: object) -> None:
    with pytest.raises(BadGoldError):
        gold_boxes(gold)


def test_golds_of_every_kind() -> None:
    for gold in (
        [1, 2, 3, 4],
        (1.0, 2.0, 3.0, 4.0),
        [[1, 2, 3, 4]],
        "[1,2,3,4]",
        {"bbox": [1, 2, 3, 4]},
    ):
        assert gold_boxes(gold) == [(1.0, 2.0, 3.0, 4.0)]


@pytest.mark.parametrize(
    ("written", "gold", "duration", "value"),
    [
        ("0 to 10", [0, 10], None, 1.0),
        ("[5, 15]", [0, 10], None, 1 / 3),
        ("from 1:05 to 1:15", [60, 80], None, 0.5),
        ("00:01:05 - 00:01:15", "65 to 75", None, 1.0),
        ('{"start": 5.0, "end": 15}', {"start": 5, "end": 15}, None, 1.0),
        ('{"time": [2.0, 9.0], "boxes": {"2": [1, 2, 3, 4]}}', {"time": [2, 9]}, None, 1.0),
        ('{"end_time": 9, "start_time": 2}', {"start_time": 2, "end_time": 9}, None, 1.0),
        ('{"segment": [2, 9]}', {"begin": 2, "end": 9}, None, 1.0),
        ('{"from": 2, "to": 9}', {"segment": [2, 9]}, None, 1.0),
        ("5 to 50", [0, 10], 10, 0.5),
        ("12s-20s", [12, 20], None, 1.0),
        ("20 to 10", [10, 20], None, 0.0),
        ("10 to 10", [5, 15], None, 0.0),
        ("20 to 30", [0, 10], 15, 0.0),
        ("10", [5, 15], None, 0.0),
        ("1, 2, 3", [1, 2], None, 0.0),
        ("none", [1, 2], None, 0.0),
    ],
)
def test_temporal_iou(written: str, gold: object, duration: float | None, value: float) -> None:
    assert value_of(tiou(think(written), gold, duration=duration)) == pytest.approx(value)


def test_a_segment_without_length_overlaps_nothing() -> None:
    assert segment_iou((5, 5), (0, 10)) == 0.0


@pytest.mark.parametrize("gold", [None, "", [5], [10, 5], "noon"])
def test_golds_that_are_no_segment(gold: object) -> None:
    with pytest.raises(BadGoldError):
        tiou(think("1 to 2"), gold)
