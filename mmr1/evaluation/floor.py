"""``mmr1 reward floor``: what answers without sense score, which a reward curve has to leave.

A policy here is a rule that sees a row's prompt and never its gold answer. What a rule is fitted
on, such as the most frequent answer, is the other half of the rows. A rule that has nothing to say
for a row says the most frequent answer, so that all have the same denominator.
"""

from __future__ import annotations

import math
import random
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from statistics import fmean

from rich.console import Console
from rich.table import Table

from mmr1.config import Config
from mmr1.data.sources import load_samples
from mmr1.rewards.composite import CompositeReward, build_composite_reward
from mmr1.rewards.item import RewardItem
from mmr1.trainer.validation.statistics import interval
from mmr1.types import Sample

GOLD = "the gold answer"
SEVERAL = "several at once: "
GOLD_FORMS = (
    "<think>\nBy the question.\n</think>\n<answer>{}</answer>",
    "<think>\nBy the question.\n</think>\nThe answer is \\boxed{{{}}}.",
    "<think>\nBy the question.\n</think>\n<answer>\\boxed{{{}}}</answer>",
    '<think>\nBy the question.\n</think>\n<answer>[{{"bbox_2d": {}}}]</answer>',
    "{}",
)
"""How a completion may give its answer."""
_OPTION = re.compile(r"(?m)^\s*\(?([A-H])[.:)]\s*(.+?)\s*$")
_NUMBER = re.compile(r"-?\d+(?:\.\d+)?")
_WORDS = ("A", "0", "1", "yes")
_MANY = 10

Policy = Sequence[str | None]
"""What a policy answers to each row; None where it has nothing to say."""


@dataclass(frozen=True, slots=True)
class Score:
    """Score of a policy.

    Attributes:
        policy: Its name.
        mean: Mean of the valid rewards; None if none is valid.
        components: Mean of each reward function.
        low, high: 95% interval of the mean.
        several: It gives several answers at once.
    """

    policy: str
    mean: float | None
    components: Mapping[str, float | None]
    low: float
    high: float
    several: bool = False


@dataclass(frozen=True, slots=True)
class Floor:
    """Scores of all policies on the same rows.

    Attributes:
        rows: Rows with a gold answer.
        answers: Different gold answers.
        gold: Score of the gold answers.
        scores: Others, the best first.
    """

    rows: int
    answers: int
    gold: Score
    scores: Sequence[Score]

    @property
    def best(self) -> Score:
        """The best policy that gives one answer: the floor."""
        return next(score for score in self.scores if not score.several)

    @property
    def summary(self) -> str:
        """The floor in a line."""
        return (
            f"floor: {_shown(self.best.mean)} ({self.best.policy}); the gold answer gets "
            f"{_shown(self.gold.mean)}"
        )

    @property
    def findings(self) -> list[str]:
        """Problems of the rewards, a sentence each."""
        found = [
            f"'{score.policy}' gets {score.mean:.3f}, more than any one answer "
            f"({self.best.mean:.3f}): a policy learns to say everything"
            for score in self.scores
            if score.several
            and score.mean is not None
            and score.mean > (self.best.mean or 0) + 1e-9
        ]
        if self.gold.mean is not None and self.gold.mean <= (self.best.mean or 0):
            found.append(
                f"'{self.best.policy}' gets {self.best.mean:.3f}, and the gold answer "
                f"{self.gold.mean:.3f}: the rewards do not pay for the answer"
            )
        return found


def measure_floor(reward: CompositeReward, samples: Sequence[Sample]) -> Floor:
    """Score answers without sense, and the gold answers, with the rewards of a run.

    All are given in the form in which these rewards pay most for the gold answers.

    Args:
        reward: The rewards.
        samples: Rows; those without a gold answer are left out. Media are not opened.

    Raises:
        ValueError: If no row has a gold answer.
    """
    known = [sample for sample in samples if sample.answer is not None]
    if not known:
        raise ValueError(
            "no row has a gold answer, so there is no floor to measure; look at the key 'answer' "
            "of data.train"
        )
    made = policies(known)
    frequent = made["most frequent answer"]
    golds: Policy = [str(sample.answer) for sample in known]
    form = max(GOLD_FORMS, key=lambda form: _score(reward, known, GOLD, form, golds).mean or 0.0)
    scores = {}
    for name, answers in {GOLD: golds, **made}.items():
        filled = [own if own is not None else f for own, f in zip(answers, frequent, strict=True)]
        scores[name] = _score(reward, known, name, form, filled)
    scores["nothing"] = _score(reward, known, "nothing", "", [""] * len(known))
    gold = scores.pop(GOLD)
    ordered = sorted(scores.values(), key=lambda s: -1e9 if s.mean is None else s.mean)[::-1]
    return Floor(len(known), len({str(s.answer) for s in known}), gold, ordered)


def _score(
    reward: CompositeReward, samples: Sequence[Sample], name: str, form: str, answers: Policy
) -> Score:
    items = [
        RewardItem(form.format(answer), sample, group=group)
        for group, (answer, sample) in enumerate(zip(answers, samples, strict=True))
    ]
    valid = [verdict for verdict in reward.score(items) if verdict.valid]
    values = [verdict.value for verdict in valid if verdict.value is not None]
    parts = {
        function: [v for r in valid if (v := r.components.get(function)) is not None]
        for function in reward.rewards
    }
    means = {function: fmean(v) if v else None for function, v in parts.items()}
    if not values:
        return Score(name, None, means, math.nan, math.nan, name.startswith(SEVERAL))
    return Score(name, fmean(values), means, *interval(values), name.startswith(SEVERAL))


def policies(samples: Sequence[Sample]) -> dict[str, Policy]:
    """Return what each policy without sense answers to these rows, by its name."""
    draw, count = random.Random(0), len(samples)
    halves = [Counter(str(s.answer) for s in samples[k::2]).most_common() for k in (0, 1)]
    other = [halves[1 - i % 2] or halves[i % 2] for i in range(count)]  # one row has no other half
    numbers = [_NUMBER.findall(sample.question) for sample in samples]
    options = [_OPTION.findall(sample.question) for sample in samples]
    letters = [bool(re.fullmatch(r"\(?[A-H]\)?\.?", str(s.answer).strip())) for s in samples]

    def chosen(pick: Callable[[list[tuple[str, str]]], tuple[str, str]]) -> Policy:
        picked = [pick(shown) if shown else None for shown in options]
        return [
            (option[0] if letter else option[1]) if option else None
            for option, letter in zip(picked, letters, strict=True)
        ]

    made: dict[str, Policy] = {
        "an empty answer": [""] * count,
        **{f"always {word!r}": [word] * count for word in _WORDS},
        "most frequent answer": [common[0][0] for common in other],
        "first number of the question": [n[0] if n else None for n in numbers],
        "last number of the question": [n[-1] if n else None for n in numbers],
        "first option": chosen(lambda shown: shown[0]),
        "longest option": chosen(lambda shown: max(shown, key=lambda option: len(option[1]))),
        "random option": chosen(draw.choice),
        **_boxes(samples),
        **_spans(samples),
        f"{SEVERAL}the question copied": [sample.question for sample in samples],
        f"{SEVERAL}frequent answers": [
            ", ".join(answer for answer, _ in common[:_MANY]) for common in other
        ],
        f"{SEVERAL}all options": [
            " ".join(o[0] if letter else o[1] for o in shown) if shown else None
            for shown, letter in zip(options, letters, strict=True)
        ],
    }
    return {name: answers for name, answers in made.items() if any(a is not None for a in answers)}


def _boxes(samples: Sequence[Sample]) -> dict[str, Policy]:
    """Return the whole picture and the box in its middle, for rows whose answer is a box."""
    sizes = [_size(sample) if _is_box(sample.answer) else None for sample in samples]

    def of(*shares: float) -> Policy:
        boxes = [
            None if size is None else [round(s * size[k % 2]) for k, s in enumerate(shares)]
            for size in sizes
        ]
        return [None if box is None else str(box) for box in boxes]

    return {"whole picture": of(0, 0, 1, 1), "box in the middle": of(0.25, 0.25, 0.75, 0.75)}


def _spans(samples: Sequence[Sample]) -> dict[str, Policy]:
    """Return the mean span of time, fitted on the other half, for rows whose answer is a span."""
    spans = [_span(sample.answer) for sample in samples]
    if not any(spans):
        return {}
    halves = [[span for span in spans[k::2] if span] for k in (0, 1)]
    answers: list[str | None] = []
    for index, span in enumerate(spans):
        fitted = halves[1 - index % 2] or halves[index % 2]
        start, end = (fmean(each[k] for each in fitted) for k in (0, 1))
        answers.append((f"{start:.2f} to {end:.2f}") if span else None)
    return {"mean span": answers}


def _is_box(answer: object) -> bool:
    box = (
        answer[0] if isinstance(answer, list) and answer and isinstance(answer[0], list) else answer
    )
    return isinstance(box, list) and len(box) == 4 and all(isinstance(x, int | float) for x in box)


def _span(answer: object) -> tuple[float, float] | None:
    if not isinstance(answer, list) or len(answer) != 2:
        return None
    if not all(isinstance(x, int | float) for x in answer):
        return None
    return float(answer[0]), float(answer[1])


def _size(sample: Sample) -> tuple[int, int] | None:
    if sample.meta.get("width") and sample.meta.get("height"):
        return sample.meta["width"], sample.meta["height"]
    return next((medium.size for medium in sample.shown if medium.size), None)


def read_floor(config: Config, limit: int) -> Floor:
    """Measure the floor of a configuration on the first rows of its data.

    Raises:
        ValueError: If the data or the rewards cannot be used.
    """
    specs = (
        [config.data.train] if isinstance(config.data.train, str) else list(config.data.train or {})
    )
    samples = [s for spec in specs for s in islice(load_samples(spec, config.data), limit)]
    with build_composite_reward(config.rewards, config.scoring) as reward:
        return measure_floor(reward, samples)


def print_floor(floor: Floor) -> None:
    """Print the scores of all policies, the best first, and what is wrong with the rewards."""
    console = Console(highlight=False, markup=False, emoji=False)
    names = list(floor.gold.components)
    table = Table("policy", "reward", "95%", *names, box=None, pad_edge=False)
    for score in (floor.gold, *floor.scores):
        means = [_shown(score.components[name]) for name in names]
        table.add_row(
            score.policy, _shown(score.mean), f"{score.low:.3f} to {score.high:.3f}", *means
        )
    console.print(f"{floor.rows} rows with an answer, {floor.answers} different")
    console.print(table)
    console.print(floor.summary)
    for finding in floor.findings:
        console.print(f"problem: {finding}", soft_wrap=True)


def _shown(mean: float | None) -> str:
    return "invalid" if mean is None else f"{mean:.3f}"
