"""Findings: problems that a run's metrics and completions show, with steps and remedy.

docs/troubleshooting.md has the thresholds. A metric is judged by its centred mean, so that a single
odd step is not a finding.
"""

from __future__ import annotations

import json
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

from mmr1.rewards.reading.extract import extract_answer
from mmr1.trainer.runs.findings import (
    Columns,
    Finding,
    absolute_findings,
    is_number,
    reward_of,
)
from mmr1.types import Status

LOW_ENTROPY = 0.05
NO_SIGNAL = 0.9
TRUNCATED = 0.1
INVALID = 0.05
GAP_JUMP, SMALL_GAP = 5.0, 0.005
LENGTH_GROWTH = 2.0
STRETCH = 4
"""Steps that are averaged at least, where stretches of a run are compared."""
APART = 0.1
"""How much a component must rise, and another one fall, on a scale of 0 to 1."""
LOOPS = 0.1
UNREAD = 0.05
UNREAD_EXAMPLES = 3
SAME_ANSWER = 0.8
LOOP_LENGTH, LOOP_RATIO = 200, 0.2
"""A completion of so many characters whose last half compresses to less than this share loops."""


@dataclass(frozen=True, slots=True)
class StepFacts:
    """Facts about the completions of one step.

    Attributes:
        completions: How many there are.
        looping: How many repeat themselves.
        golds: Different gold answers.
        answer: The most frequent answer, and how many gave it.
        unread: Answers that a reward function could not read, and why, in order.
    """

    completions: int
    looping: int
    golds: int
    answer: tuple[str, int]
    unread: tuple[str, ...] = ()


def step_facts(rows: Iterable[Mapping[str, Any]]) -> StepFacts:
    """The facts about the prompts of a step, without those of its validation."""
    answers: Counter[str] = Counter()
    golds = set()
    unread: list[str] = []
    count = looping = 0
    for row in rows:
        if "mode" in row:
            continue
        golds.add(json.dumps(row["answer"], sort_keys=True, default=str))
        for completion in row["completions"]:
            count += 1
            looping += loops(completion["text"])
            if (answer := given_answer(completion["text"])) is not None:
                answers[answer] += 1
            if completion.get("status") == Status.UNREAD:
                unread.append(f"'{(answer or '')[:60]}' ({completion.get('error')})")
    most_common = (answers.most_common(1) or [("", 0)])[0]
    return StepFacts(count, looping, len(golds), most_common, tuple(unread))


def given_answer(text: str) -> str | None:
    """The answer of a completion as one line, or None."""
    answer = extract_answer(text)
    return None if answer is None else " ".join(answer.split())


def loops(text: str) -> bool:
    """True if the completion ends by repeating itself.

    >>> loops("so x = 2 and therefore " * 40), loops("short")
    (True, False)
    """
    if len(text) < LOOP_LENGTH:
        return False
    last = text[len(text) // 2 :].encode(errors="replace")
    return len(zlib.compress(last)) < LOOP_RATIO * len(last)


def findings(
    metrics: Columns, facts: Mapping[int, StepFacts], max_response_length: Any = None
) -> list[Finding]:
    """All findings of a run: the absolute ones, then those in the order of ``_FINDERS``.

    Args:
        facts: Facts of each step that has rollouts.
        max_response_length: ``rollout.max_response_length``, for the growth of completions.
    """
    curves = _Curves(metrics)
    found = [finding for find in _FINDERS for finding in find(curves)]
    growth = _blow_up(curves, max_response_length)
    return [*absolute_findings(metrics), *found, *growth, *_of_completions(facts)]


class _Curves:
    """The centred means of a run's metrics."""

    def __init__(self, metrics: Columns) -> None:
        rows = [i for i, step in enumerate(metrics.get("step", [])) if is_number(step)]
        rows = [i for i in rows if int(metrics["step"][i]) > 0]  # 0 is before the first
        self.steps = [int(metrics["step"][i]) for i in rows]
        self.window = max(1, round(len(rows) / 40))
        self._raw = {
            name: [float(column[i]) if is_number(column[i]) else None for i in rows]
            for name, column in metrics.items()
        }

    def raw(self, name: str) -> list[float | None]:
        return self._raw.get(name, [None] * len(self.steps))

    def names(self) -> list[str]:
        return list(self._raw)

    def mean(self, name: str) -> list[float | None]:
        return centred(self.raw(name), self.window)

    def ends(self, name: str) -> tuple[float, float] | None:
        """The means of the first and of the last tenth of the values; None for fewer than four."""
        values = [v for v in self.raw(name) if v is not None]
        if len(values) < 4:
            return None
        tenth = max(1, len(values) // 10)
        return sum(values[:tenth]) / tenth, sum(values[-tenth:]) / tenth

    def spans(self, holds: Iterable[bool]) -> list[tuple[int, int]]:
        """The stretches of steps for which it holds, of at least a window and two steps."""
        spans = []
        of_steps = zip(holds, self.steps, strict=True)
        for true, stretch in groupby(of_steps, key=lambda pair: pair[0]):
            steps = [step for _, step in stretch]
            if true and len(steps) >= max(2, self.window):
                spans.append((steps[0], steps[-1]))
        return spans

    def longest(self, name: str, holds: Callable[[float], bool]) -> tuple[int, int] | None:
        spans = self.spans(v is not None and holds(v) for v in self.mean(name))
        return max(spans, key=lambda span: span[1] - span[0], default=None)


def centred(values: Sequence[float | None], window: int) -> list[float | None]:
    """The mean of ``window`` values around each, fewer at the ends; None where there is no value.

    >>> centred([1.0, 2.0, 6.0, None], 3)
    [1.5, 3.0, 4.0, None]
    """
    half = window // 2
    means: list[float | None] = []
    for index, value in enumerate(values):
        near = [v for v in values[max(0, index - half) : index + half + 1] if v is not None]
        means.append(None if value is None else sum(near) / len(near))
    return means


def _falling_reward(curves: _Curves) -> Iterator[Finding]:
    values = curves.raw("reward/mean")
    known = [(step, v) for step, v in zip(curves.steps, values, strict=True) if v is not None]
    length = max(STRETCH, len(known) // 10)
    if len(known) < 5 * length:
        return
    stretches = [known[end - length : end] for end in range(len(known), length - 1, -length)]
    means = [sum(v for _, v in stretch) / length for stretch in stretches]  # the last one first
    best, last = max(means), means[0]
    rewards = [v for _, v in known]
    if best - last >= max(APART, (max(rewards) - min(rewards)) / 2):
        yield Finding(
            "The reward falls",
            f"from {best:.2f} at its best to {last:.2f} in the end",
            "unless the later records are harder, the updates have damaged the policy: lower "
            "optimizer.lr or raise algorithm.kl.coef, and start from a checkpoint before the fall",
            (stretches[means.index(best)][0][0], known[-1][0]),
        )


def _entropy(curves: _Curves) -> Iterator[Finding]:
    ends = curves.ends("entropy")
    if ends is None or ends[0] < 4 * LOW_ENTROPY:
        return
    if span := curves.longest("entropy", lambda v: v < LOW_ENTROPY):
        lowest = min(v for v in curves.mean("entropy") if v is not None)
        yield Finding(
            "Entropy collapse",
            f"entropy fell from {ends[0]:.2g} to {lowest:.2g} nats per token: the completions of "
            "a prompt hardly differ any more",
            "where the reward is high the task is learnt: stop, or take harder records. Else lower "
            "the learning rate, raise algorithm.loss.clip_ratio_high (0.28), or lower the weight "
            "of the format reward",
            span,
        )


def _no_signal(curves: _Curves) -> Iterator[Finding]:
    if span := curves.longest("reward/frac_zero_std", lambda v: v >= NO_SIGNAL):
        yield Finding(
            "No signal",
            f"in at least {NO_SIGNAL:.0%} of the groups all completions have the same reward, so "
            "they teach nothing",
            "the task is too easy or too hard, or answers are not parsed: read the completions; "
            "mmr1-data filter chooses records by pass rate",
            span,
        )


def _truncation(curves: _Curves) -> Iterator[Finding]:
    if span := curves.longest("completions/frac_truncated", lambda v: v >= TRUNCATED):
        most = max(v for v in curves.mean("completions/frac_truncated") if v is not None)
        yield Finding(
            "Truncation",
            f"up to {most:.0%} of the completions were cut off before their end",
            "where their texts make sense raise rollout.max_response_length, or add the reward "
            "function overlong or length_cosine; where they do not, lower optimizer.lr",
            span,
            {"status": "truncated"},
        )


def _gap(curves: _Curves) -> Iterator[Finding]:
    gaps = sorted(v for v in curves.raw("rollout/logprob_diff_mean") if v is not None)
    if not gaps:
        return
    usual = gaps[len(gaps) // 2]
    limit = max(GAP_JUMP * usual, SMALL_GAP)
    high = [s for s, v in zip(curves.steps, curves.raw("rollout/logprob_diff_mean"), strict=True)
            if v is not None and v > limit]  # fmt: skip
    if high:
        yield Finding(
            "Log-prob gap",
            f"engine and trainer differ by up to {gaps[-1]:.2g} nats per token, usually by "
            f"{usual:.2g}: they no longer compute the same model",
            "stop the run and report it; with rollouts ahead (rollout.max_off_policy_steps) lower "
            "their number",
            (high[0], high[-1]),
        )


def _invalid(curves: _Curves) -> Iterator[Finding]:
    counts, means = curves.raw("reward/num_invalid"), curves.raw("tokens/completion")
    lengths = curves.raw("completions/mean_length")
    shares = [
        None if c is None or not t or not n else c / (t / n)
        for c, t, n in zip(counts, means, lengths, strict=True)
    ]
    spans = curves.spans(s is not None and s >= INVALID for s in shares)
    if spans:
        most = max(s for s in shares if s is not None)
        yield Finding(
            "Completions without a valid reward",
            f"up to {most:.0%} of a step's completions",
            "a reward function fails: read its errors",
            (spans[0][0], spans[-1][1]),
            {"status": "!"},
        )


def _against_each_other(curves: _Curves) -> Iterator[Finding]:
    means = {n: name for n in curves.names() if (name := reward_of(n, "mean")) is not None}
    ends = {name: e for n, name in means.items() if (e := curves.ends(n)) is not None}
    falls = [n for n, (first, last) in ends.items() if last <= first - APART]
    rises = [n for n, (first, last) in ends.items() if last >= first + APART]
    if falls and rises:
        shown = ", ".join(_of_ends(n, ends[n]) for n in (*rises, *falls))
        high, low = rises[0], falls[0]
        plain = all(name.replace("_", "").isalnum() for name in (high, low))
        yield Finding(
            "A reward rises while another falls",
            shown,
            "read the completions in which they disagree: the policy may be hacking the one that "
            "rises; change the weights in rewards, or the function itself",
            (curves.steps[0], curves.steps[-1]),
            {"where": f"{high} = 1 and {low} = 0"} if plain else {},
        )


def _of_ends(name: str, ends: tuple[float, float]) -> str:
    return f"{name} {ends[0]:.2f} → {ends[1]:.2f}"


def _blow_up(curves: _Curves, limit: Any) -> Iterator[Finding]:
    ends = curves.ends("completions/mean_length")
    if ends is None or ends[0] <= 0 or ends[1] < LENGTH_GROWTH * ends[0]:
        return
    half = LENGTH_GROWTH * ends[0]
    span = curves.longest("completions/mean_length", lambda v: v >= half)
    if span:
        at_most = f", of at most {limit}" if is_number(limit) else ""
        yield Finding(
            "Length blow-up",
            f"completions grew from {ends[0]:.0f} to {ends[1]:.0f} tokens{at_most}",
            "compare the longest completions with earlier ones: if they say no more, add the "
            "reward function overlong or length_cosine; algorithm.loss.agg_mode decides what a "
            "long completion weighs",
            span,
            {"order": "longest"},
        )


def _of_completions(facts: Mapping[int, StepFacts]) -> Iterator[Finding]:
    looping = [s for s, f in facts.items() if f.looping >= max(1, LOOPS * f.completions)]
    if looping:
        most = max(facts[s].looping / facts[s].completions for s in looping)
        yield Finding(
            "Repeated texts",
            f"up to {most:.0%} of a step's completions end by repeating themselves",
            "lower the learning rate, raise algorithm.kl.coef, or let the length reward cost them",
            (looping[0], looping[-1]),
            {"status": "loops"},
        )
    unread = [s for s, f in facts.items() if len(f.unread) > UNREAD * f.completions]
    if unread:
        share = max(len(facts[s].unread) / facts[s].completions for s in unread)
        examples = dict.fromkeys(example for s in reversed(unread) for example in facts[s].unread)
        shown = ", ".join(list(examples)[:UNREAD_EXAMPLES])
        yield Finding(
            "Answers that cannot be read",
            f"up to {share:.0%} of a step's completions, such as {shown}",
            "say in the prompt what an answer looks like, or choose a reward function whose golds "
            "are of this type (docs/rewards.md)",
            (unread[0], unread[-1]),
            {"status": "unread"},
        )
    same = [
        s
        for s, f in facts.items()
        if f.golds >= 3 and f.completions >= 8 and f.answer[1] >= SAME_ANSWER * f.completions
    ]
    if same:
        answer = facts[same[-1]].answer[0]
        yield Finding(
            "One answer for all",
            f"most completions answer '{answer[:60]}', whatever the question",
            "the reward pays a constant: balance the answers of the records, and look whether the "
            "picture reaches the model",
            (same[0], same[-1]),
        )


_FINDERS = (
    _falling_reward,
    _entropy,
    _no_signal,
    _truncation,
    _gap,
    _invalid,
    _against_each_other,
)
