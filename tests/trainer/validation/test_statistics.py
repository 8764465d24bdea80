"""pass@k, majority and intervals against enumeration, hand-worked numbers and a plain bootstrap."""

from __future__ import annotations

import json
import random
from itertools import combinations
from statistics import fmean

import pytest
from scipy.stats import binomtest

from mmr1.config import EvalConfig
from mmr1.trainer.validation.evaluate import prompt_scores, summarise
from mmr1.trainer.validation.statistics import interval, majority, paired, pass_at
from tests.rewards.graded_samples import graded, score


@pytest.mark.parametrize("right", [[True], [False] * 4, [True, False, False, True, False]])
def test_pass_at_k_is_the_share_of_subsets_with_a_right_one(right):
    for k in range(1, len(right) + 1):
        subsets = list(combinations(right, k))
        assert pass_at(right, k) == pytest.approx(fmean(any(s) for s in subsets))


def test_majority():
    assert majority(["a", "b", "b"], [1.0, 0.0, 0.0]) == 0.0
    assert majority([None, "a", None], [0.0, 1.0, 0.0]) == 1.0  # no answer is not a vote
    assert majority([None, None], [0.0, 0.0]) == 0.0
    assert majority(["a", "b", "c"], [1.0, 0.0, 0.0]) == pytest.approx(1 / 3)  # tied: shared


def brute_force(values: list[float], resamples: int = 4000) -> tuple[float, float]:
    """The percentile bootstrap as the textbook writes it, with another generator."""
    chance = random.Random(1)
    means = sorted(fmean(chance.choices(values, k=len(values))) for _ in range(resamples))
    return means[int(0.025 * resamples)], means[int(0.975 * resamples)]


@pytest.mark.parametrize("values", [[1.0] * 30 + [0.0] * 20, [0.1, 0.9, 0.4, 0.4, 0.75, 1.0, 0.0]])
def test_intervals_are_those_of_a_plain_bootstrap(values):
    low, high = interval(values)
    expected = brute_force(values)
    # The ends are themselves estimates: sqrt(p(1-p)/B)/density, about 0.01 of these spreads.
    assert (low, high) == pytest.approx(expected, abs=0.03)
    assert low < fmean(values) < high
    assert interval(values) == (low, high)


@pytest.mark.parametrize(("right", "of"), [(0, 4), (4, 4), (1, 1), (3, 40), (250, 500)])
def test_intervals_of_shares_are_wilsons(right, of):
    """Equation 4 of Wilson 1927, with the quantile of the normal distribution."""
    z, share = 1.959963984540054, right / of
    middle = (share + z**2 / (2 * of)) / (1 + z**2 / of)
    half = z / (1 + z**2 / of) * (share * (1 - share) / of + z**2 / (4 * of**2)) ** 0.5
    assert interval([1.0] * right + [0.0] * (of - right)) == pytest.approx(
        (middle - half, middle + half), abs=1e-12
    )


def test_an_interval_of_equal_values_is_that_value():
    assert interval([0.25] * 8) == (0.25, 0.25)
    assert paired([1.0] * 4, [1.0] * 4).interval == (0.0, 0.0)


def test_paired_comparison():
    first = [1.0, 1.0, 0.0, 0.0, 0.0, 1.0, 0.0, 0.0]
    second = [1.0, 1.0, 1.0, 1.0, 1.0, 0.0, 1.0, 0.0]
    comparison = paired(first, second)
    assert (comparison.better, comparison.worse, comparison.prompts) == (4, 1, 8)
    assert comparison.difference == pytest.approx(3 / 8)
    # McNemar, exact: 2 * (C(5,4) + C(5,5)) / 2^5.
    assert comparison.p_value == pytest.approx(2 * (5 + 1) / 32)
    assert comparison.interval == pytest.approx(
        brute_force([b - a for a, b in zip(first, second, strict=True)]), abs=0.13
    )
    assert paired(second, first).difference == -comparison.difference
    assert paired(first, first).p_value == 1.0


def test_pairs_are_surer_than_their_parts():
    chance = random.Random(0)
    first = [float(chance.random() < 0.5) for _ in range(200)]
    second = [1.0 if chance.random() < 0.1 else value for value in first]
    low, high = paired(first, second).interval
    (low_a, high_a), (low_b, high_b) = interval(first), interval(second)
    assert high - low < (high_a - low_a + high_b - low_b) / 2


def row(name: str, index: int, score: float | None, vote: str | None, kind: str = "math"):
    value = score if score is None else float(score)
    return {
        "mode": "sampled", "id": name, "index": index, "kind": kind, "vote": vote, "tokens": 4,
        "score": value, "components": {"math": value}, "truncated": vote is None,
    }  # fmt: skip


def test_numbers_of_an_evaluation_worked_by_hand():
    outcomes = {
        ("a", "math"): [(1, "4"), (1, "4"), (0, "5"), (0, None)],
        ("b", "math"): [(0, "1"), (0, "2"), (0, "1"), (1, "3")],
        ("c", "iou"): [(1, "x"), (None, "y"), (1, "x"), (1, "x")],
    }
    rows = [
        row(name, i, s, v, kind)
        for (name, kind), scores_and_votes in outcomes.items()
        for i, (s, v) in enumerate(scores_and_votes)
    ]
    for tokens, each in enumerate(rows):
        each["tokens"] = tokens
    mode = summarise(rows, EvalConfig(sampled={"n": 4}), "math")["sampled"]
    assert mode.length_right == (0 + 1 + 7 + 8 + 10 + 11) / 6
    assert mode.length_wrong == (2 + 3 + 4 + 5 + 6) / 5
    assert mode.accuracy == pytest.approx((2 / 4 + 1 / 4 + 3 / 3) / 3)
    assert (mode.completions, mode.invalid, mode.truncated) == (12, 1, 1)
    # c has three valid completions, so k goes to 3.
    assert mode.pass_at == pytest.approx(
        {"1": mode.accuracy, "2": (5 / 6 + 1 / 2 + 1) / 3, "3": (1 + 3 / 4 + 1) / 3}
    )
    assert mode.majority == pytest.approx((1 + 0 + 1) / 3)
    assert mode.components == {"math": pytest.approx(6 / 11)}
    assert {kind: (s.prompts, s.accuracy) for kind, s in mode.by.items()} == {
        "iou": (1, 1.0),
        "math": (2, pytest.approx(3 / 8)),
    }
    assert prompt_scores(rows) == pytest.approx({"a": 0.5, "b": 0.25, "c": 1.0})


def test_levels_of_a_graded_score():
    rows = [row(str(n), 0, None, None) for n in range(4)]
    for item, value in zip(rows, (0.2, 0.4, 0.6, 0.8), strict=True):
        item["components"]["math"], item["score"] = value, float(value >= 0.5)
    mode = summarise(rows, EvalConfig(accuracy_thresholds=[0.5, 0.3, 0.7]), "math")["sampled"]
    assert mode.accuracy == 0.5
    assert mode.at == {"0.5": 0.5, "0.3": 0.75, "0.7": 0.25}
    assert mode.components["math"] == pytest.approx(0.5)


@pytest.mark.parametrize(
    ("function", "path", "differing"),
    [
        # Four of the answers that R1-V's script judged it judged wrongly: see test_samples.py.
        ("math", "geoqa_r1v/model_outputs_grpo_2epochs_subset.json", 4),
        ("count", "superclevr_counting_r1v/model_outputs_grpo100_subset.json", 0),
    ],
)
def test_accuracy_of_graded_outputs_of_r1v(function, path, differing):
    graded_rows = graded(path)
    rewards = score(function, graded_rows)
    rows = [
        {**row(str(n), 0, r.value, None), "components": {function: r.value}}
        for n, r in enumerate(rewards)
    ]
    mode = summarise(json.loads(json.dumps(rows)), EvalConfig(), function)["sampled"]
    upstream = [
        float(r.get("is_correct", r["extracted_answer"] == r["ground_truth"])) for r in graded_rows
    ]
    assert abs(mode.accuracy - fmean(upstream)) * len(graded_rows) <= differing + 1e-9
    low, high = mode.interval
    exact = binomtest(round(mode.accuracy * len(graded_rows)), len(graded_rows)).proportion_ci()
    assert (low, high) == pytest.approx((exact.low, exact.high), abs=0.05)
