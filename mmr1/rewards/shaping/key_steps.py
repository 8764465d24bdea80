"""Process rewards: the key steps that a completion's thinking reaches."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from mmr1.rewards.item import BadGoldError
from mmr1.rewards.math.latex import normalise

_THINK = re.compile(r"<think>(.*?)(?:</think>|$)", re.DOTALL)
_BREAK = re.compile(r"\n\s*\n|\n(?=\s*(?:step\s*\d+|\d+[.)]\s|[-*]\s))", re.IGNORECASE)

KeyStep = str | Sequence[str]


@dataclass(frozen=True, slots=True)
class StepReward:
    """One written step.

    Attributes:
        text: The step.
        end: Index of the character after the step in the completion. A process reward belongs to
            the step's last token.
        value: Share of all key steps that are first reached in this step.
    """

    text: str
    end: int
    value: float


def steps(completion: str, key_steps: Sequence[KeyStep]) -> float:
    """Share of the key steps that the thinking reaches, in their order.

    A key step is a formula, number or phrase that a right derivation passes, or a list of ways to
    write it. It counts only after the key step before it. Soft key-step matching
    is after Zhang et al. 2025, R1-VL, https://arxiv.org/abs/2503.12937.

    Args:
        completion: The whole completion.
        key_steps: The record's key steps, in order.

    >>> steps("<think>AB = 3, so the area is 9.</think>", ["AB = 3", ["area is 9", "S = 9"]])
    1.0
    """
    return sum(step.value for step in step_rewards(completion, key_steps))


def step_rewards(completion: str, key_steps: Sequence[KeyStep]) -> list[StepReward]:
    """The reward of each written step of the thinking; they add up to ``steps``.

    Raises:
        BadGoldError: There are no key steps, or an empty one.
    """
    patterns = [_ways(step) for step in _checked(key_steps)]
    reached, rewards = 0, []
    for text, end in split_steps(completion):
        plain, position, before = _plain(text), 0, reached
        while reached < len(patterns):
            end_of_match = _find(plain, patterns[reached], position)
            if end_of_match is None:
                break
            position, reached = end_of_match, reached + 1
        rewards.append(StepReward(text, end, (reached - before) / len(patterns)))
    return rewards


def split_steps(completion: str) -> list[tuple[str, int]]:
    """The steps of the thinking, each with the index at which it ends.

    Without ``<think>`` tags the whole completion is the thinking. A step begins after a blank line,
    or with a line that begins a numbered step or a list item.
    """
    think = _THINK.search(completion)
    start, end = think.span(1) if think else (0, len(completion))
    steps_and_ends = []
    for gap in [*_BREAK.finditer(completion, start, end), None]:
        stop = gap.start() if gap else end
        if text := completion[start:stop].strip():
            steps_and_ends.append((text, stop))
        start = gap.end() if gap else end
    return steps_and_ends


def steps_gold(key_steps: Any) -> None:
    """Raises BadGoldError when the record's key steps cannot be looked for."""
    _checked(key_steps)


def _checked(key_steps: Any) -> Sequence[KeyStep]:
    if isinstance(key_steps, str) or not isinstance(key_steps, Sequence) or not key_steps:
        raise BadGoldError(f"key_steps {key_steps!r:.60} is no list of steps")
    if not all(way.strip() for step in key_steps for way in _written(step)):
        raise BadGoldError("one of the key_steps is empty")
    return key_steps


def _written(step: KeyStep) -> Sequence[str]:
    ways = [step] if isinstance(step, str) else list(step)
    return [str(way) for way in ways] or [""]


def _ways(step: KeyStep) -> re.Pattern[str]:
    """Matches any way of writing the step, but not inside a longer word or number."""
    ways = "|".join(re.escape(_plain(way)) for way in _written(step))
    return re.compile(rf"(?<![\w.])(?:{ways})(?!\w|\.\d)")


def _find(text: str, pattern: re.Pattern[str], position: int) -> int | None:
    match = pattern.search(text, position)
    return match.end() if match else None


def _plain(text: str) -> str:
    return re.sub(r"\s*([=+*/<>()^-])\s*", r"\1", normalise(text).casefold())
