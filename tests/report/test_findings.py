"""Findings: each has a run that shows it, by numbers worked out by hand, and one that does not."""

from __future__ import annotations

from typing import Any

import pytest

from mmr1.report.findings import StepFacts, centred, findings, loops, step_facts
from mmr1.trainer.runs.findings import absolute_findings
from tests.report.run_files import completion, prompt

Column = list[float | None]


def found(facts: dict[int, StepFacts] | None = None, **columns: Column) -> dict[str, Any]:
    """The findings by title; ``a__b`` stands for the metric ``a/b``."""
    length = max((len(column) for column in columns.values()), default=0)
    metrics = {name.replace("__", "/"): column for name, column in columns.items()}
    all_of = findings({"step": [*range(1, length + 1)], **metrics}, facts or {})
    return {finding.title: finding for finding in all_of}


def test_a_centred_mean_does_not_lag():
    falling = [1.0] * 10 + [0.0] * 10
    assert centred(falling, 5)[9:11] == [pytest.approx(0.6), pytest.approx(0.4)]
    assert centred(falling, 1) == falling
    assert centred([1.0, None, 4.0], 3) == [1.0, None, 4.0]


def test_a_reward_that_falls():
    learnt: Column = [0.1, 0.2, 0.3, 0.4, *[0.8] * 12]
    fall = found(reward__mean=[*learnt, 0.5, 0.4, 0.3, 0.0])["The reward falls"]
    assert fall.detail == "from 0.80 at its best to 0.30 in the end"
    assert fall.steps == (13, 20)  # from the last stretch that was best
    assert not found(reward__mean=[*learnt, 0.6, 0.7, 0.5, 0.6])  # less than half of what it learnt
    assert not found(reward__mean=[*learnt[:12], 0.5, 0.4, 0.3, 0.0])  # too few steps to tell
    assert not found(reward__mean=[0.06, 0.07] * 8 + [0.0] * 4)  # of no account
    noise: Column = [float((37 * n) % 101) for n in range(400)]
    assert not found(reward__mean=noise)


def test_entropy_collapse():
    collapse = found(entropy=[1.0, 0.8, 0.4, 0.1, 0.04, 0.02, 0.01])["Entropy collapse"]
    assert collapse.steps == (5, 7)
    assert "from 1 to 0.01 nats" in collapse.detail
    assert not found(entropy=[0.1, 0.08, 0.04, 0.03])  # it was low from the start
    assert not found(entropy=[1.0, 0.8, 0.04, 0.8, 0.7])  # a single step


def test_no_signal():
    assert found(reward__frac_zero_std=[0.2, 0.95, 1.0, 1.0, 0.5])["No signal"].steps == (2, 4)
    assert not found(reward__frac_zero_std=[0.8, 0.85, 0.89, 0.2])


def test_truncation():
    cut = found(completions__frac_truncated=[0.0, 0.0, 0.25, 0.5])["Truncation"]
    assert (cut.steps, cut.filter) == ((3, 4), {"status": "truncated"})
    assert "up to 50%" in cut.detail


def test_a_gap_that_jumps():
    usual: Column = [1e-3] * 9
    assert found(rollout__logprob_diff_mean=[*usual, 0.02, 0.3])["Log-prob gap"].steps == (10, 11)
    assert not found(rollout__logprob_diff_mean=[*usual, 0.0049])  # of no account
    assert not found(
        rollout__logprob_diff_mean=[0.02, 0.03, 0.02, 0.04]
    )  # bfloat16 has always as much


def test_invalid_rewards():
    columns: dict[str, Column] = {
        "reward__num_invalid": [0.0, 6.0, 12.0, 2.0],  # of 64 completions: 9%, 19%, 3%
        "tokens__completion": [6400.0] * 4,
        "completions__mean_length": [100.0] * 4,
    }
    invalid = found(**columns)["Completions without a valid reward"]
    assert (invalid.steps, invalid.filter) == ((2, 3), {"status": "!"})
    assert "up to 19%" in invalid.detail


def test_a_reward_that_rises_while_another_falls():
    columns: dict[str, Column] = {
        "rewards__mine__mean": [0.2, 0.4, 0.6, 0.8],
        "rewards__true__mean": [0.5, 0.4, 0.2, 0.1],
        "reward__mean": [0.7, 0.8, 0.8, 0.9],
    }
    apart = found(**columns)["A reward rises while another falls"]
    assert apart.detail == "mine 0.20 → 0.80, true 0.50 → 0.10"
    assert apart.filter == {"where": "mine = 1 and true = 0"}
    assert not found(
        rewards__mine__mean=[0.2, 0.4, 0.6, 0.8], rewards__true__mean=[0.5, 0.5, 0.5, 0.45]
    )


def test_length_blow_up():
    longer = found(completions__mean_length=[100.0, 110.0, 190.0, 210.0, 400.0])
    assert longer["Length blow-up"].steps == (4, 5)
    assert not found(completions__mean_length=[100.0, 120.0, 150.0, 190.0])


LOOP = "<think>" + "so x = 2 and therefore " * 40
PROSE = " ".join(f"step {n}: the angle of {n * 37 % 180} degrees" for n in range(40))


def test_repeated_texts():
    assert (loops(LOOP), loops(PROSE), loops("7 " * 20)) == (True, False, False)
    rows = [prompt("a", [completion(LOOP), *[completion(PROSE)] * 3])]
    facts = {10: step_facts(rows)}
    assert facts[10] == StepFacts(completions=4, looping=1, golds=1, answer=("", 0))
    repeated = found(facts)["Repeated texts"]
    assert (repeated.steps, repeated.filter) == ((10, 10), {"status": "loops"})
    assert "up to 25%" in repeated.detail


def test_unread_answers_are_shown_with_reason():
    unread = {"text": "<answer>many</answer>", "status": "unread", "error": "count: no number"}
    read = {"text": "<answer>4</answer>", "status": "ok", "error": None}
    facts = step_facts([{"answer": 4, "completions": [unread, *[read] * 9]}])
    finding = found({3: facts})["Answers that cannot be read"]
    assert "'many' (count: no number)" in finding.detail
    assert (finding.steps, finding.filter) == ((3, 3), {"status": "unread"})
    seldom = step_facts([{"answer": 4, "completions": [unread, *[read] * 39]}])
    assert not found({3: seldom})


def test_one_answer_for_all():
    sevens = [completion("<answer> 7 </answer>")] * 3 + [completion("<answer>8</answer>")]
    rows = [prompt(name, sevens, answer=name) for name in "abc"]
    held_out = {**prompt("d", [completion("<answer>1</answer>")] * 50), "mode": "greedy"}
    facts = step_facts([*rows, held_out])
    assert facts == StepFacts(completions=12, looping=0, golds=3, answer=("7", 9))
    assert not found({1: facts})  # 75%
    all_same = StepFacts(12, 0, 3, ("7", 11))
    same = found({1: facts, 2: all_same})["One answer for all"]
    assert (same.steps, "'7'" in same.detail) == ((2, 2), True)
    assert not found({2: StepFacts(12, 0, 2, ("7", 12))})  # so many records have that answer


def test_what_is_no_number_is_no_finding():
    odd: list[Any] = [None, "x", float("nan"), float("inf"), [], {}, True, 10**400]
    names = [
        "entropy",
        "reward/frac_zero_std",
        "completions/frac_truncated",
        "rollout/logprob_diff_mean",
    ]
    names += [
        "reward/num_invalid",
        "tokens/completion",
        "completions/mean_length",
        "rewards/a/mean",
    ]
    assert findings({"step": [*range(8)], **dict.fromkeys(names, odd)}, {}) == []
    assert findings({"step": odd, "entropy": odd}, {}) == []
    assert findings({}, {}) == []


@pytest.mark.parametrize("value", [0.0, 0.5, 1.0])
def test_reward_that_never_varies_is_found(value):
    columns = {
        "step": [0, 1, 2, 3, 4],
        "rewards/format/mean": [value] * 5,
        "rewards/format/std": [0.0] * 5,
        "rewards/math/mean": [0.2, 0.3, 0.3, 0.3, 0.3],
        "rewards/math/std": [0.4, 0.4, 0.0, 0.0, 0.0],
    }
    (found,) = absolute_findings(columns)
    assert found.steps == (1, 4)
    assert "'format' has given" in found.detail
    short = {name: values[:4] for name, values in columns.items()}
    assert absolute_findings(short) == []


@pytest.mark.parametrize("metric", ["rollout/logprob_diff_mean", "rollout/logprob_diff_current"])
def test_constant_logprob_gap_is_found_from_the_first_step(metric):
    steps = [*range(1, 7)]
    (found,) = absolute_findings({"step": steps, metric: [0.1, 0.1, 0.1, 0.1, 0.01, 0.01]})
    assert found.steps == (1, 4)
    assert absolute_findings({"step": steps, metric: [0.01, 0.1, 0.1, 0.1, 0.1, 0.1]}) == []
    assert absolute_findings({"step": steps, metric: [0.005] * 6}) == []
