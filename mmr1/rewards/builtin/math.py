"""Mathematics: equal to the gold answer, by arithmetic or by computer algebra."""

from __future__ import annotations

from typing import Any

from mmr1.rewards.item import Job, no_answer, references
from mmr1.rewards.kind import reward
from mmr1.rewards.math.equality import decide, gold_text, is_prose, split_members
from mmr1.rewards.reading.extract import Where, extract_answer
from mmr1.rewards.reading.latex import normalise, without_labels
from mmr1.rewards.reading.numbers import parse_number
from mmr1.rewards.reading.times import read_clock, read_date
from mmr1.rewards.reading.units import split_unit
from mmr1.types import Reward


def math_gold(answer: Any) -> Job | None:
    """Check the gold answer at load; returns a Job where only algebra can tell."""
    checks = [_check(gold) for gold in references(answer)]
    return None if None in checks else checks[0]


def _check(answer: Any) -> Job | None:
    gold, _ = without_labels(normalise(gold_text(answer)), "")
    core, _ = split_unit(gold, bare_letters=False)
    if parse_number(core) is not None or is_prose(gold) or not any(map(str.isalnum, gold)):
        return None
    if read_clock(gold) or read_date(gold):
        return None
    return Job("mmr1.rewards.math.symbolic:check_gold", (core,))


@reward(
    "math",
    gold=math_gold,
    tasks=("math",),
    example={"completion": "<answer>0.5</answer>", "answer": "\\frac{1}{2}", "reward": 1},
)
def math(completion: str, answer: Any, *, extract: Where = "auto") -> float | Reward | Job:
    """1 where the answer equals the gold answer as mathematics, else 0.

    Numbers are compared exactly; a decimal with enough digits stands for a fraction or a root.
    Units are compared when both sides have one and dropped when one has. Words are compared as
    text, whatever their case, clock times and dates as themselves. Expressions, sets, intervals,
    equations and matrices are compared by computer algebra, with the gold first, in the sandbox.

    Args:
        completion: The whole completion.
        answer: A number, quantity, clock time, date, yes or no, set, tuple, interval, equation,
            expression or words, as text, LaTeX or a number. Of a list of texts one is to be met.
        extract: Where the answer is: ``auto``, ``answer``, ``boxed`` or ``whole``.
    """
    golds = references(answer)
    members = len(split_members(golds[0])) if isinstance(golds[0], str) else 1
    prediction = extract_answer(completion, extract, members=members)
    if prediction is None:
        return no_answer()
    verdicts = [decide(gold_text(gold), prediction) for gold in golds]
    if len(golds) == 1 or 1.0 in verdicts:
        return 1.0 if 1.0 in verdicts else verdicts[0]
    jobs = tuple(verdict.args for verdict in verdicts if isinstance(verdict, Job))
    if jobs:
        return Job("mmr1.rewards.math.symbolic:verify_any", (jobs,))
    return 0.0 if 0.0 in verdicts else verdicts[0]
