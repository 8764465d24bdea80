"""Rewards for the form of a completion: shape, length, repetition, key steps and tools."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import Field

from mmr1.rewards.item import BadGoldError
from mmr1.rewards.kind import OfAccuracy, reward
from mmr1.rewards.reading.extract import last_boxed, without_thinking
from mmr1.rewards.reading.latex import normalise
from mmr1.section import Positive

Template = Literal["think-answer", "think-boxed", "answer-only", "boxed"]

Penalty = Annotated[float, Field(le=0)]

_TAG = re.compile(r"</?(?:think|answer)>")


def _sections(completion: str, names: tuple[str, ...]) -> list[str] | None:
    """The contents of exactly these sections, in this order, or None.

    Each of their tags must occur exactly once, and no other tag. Only whitespace may surround the
    sections. It is a single pass, so the time is linear in the length.
    """
    expected_tags = [tag for name in names for tag in (f"<{name}>", f"</{name}>")]
    position, contents = 0, []
    tags = _TAG.finditer(completion)
    for index, expected_tag in enumerate(expected_tags):
        tag = next(tags, None)
        if tag is None or tag[0] != expected_tag:
            return None
        between = completion[position : tag.start()]
        if index % 2:
            contents.append(between)
        elif between.strip():
            return None
        position = tag.end()
    if next(tags, None) is not None or completion[position:].strip():
        return None
    return contents


def _think_answer(completion: str) -> bool:
    contents = _sections(completion, ("think", "answer"))
    return contents is not None and bool(contents[1].strip())


def _answer_only(completion: str) -> bool:
    contents = _sections(completion, ("answer",))
    return contents is not None and bool(contents[0].strip())


def _boxed(completion: str) -> bool:
    return not _TAG.search(completion) and _one_box(completion)


def _think_boxed(completion: str) -> bool:
    end = completion.find("</think>") + len("</think>")
    contents = _sections(completion[:end], ("think",))
    return contents is not None and _boxed(completion[end:])


def _one_box(text: str) -> bool:
    return len(re.findall(r"\\boxed\s*\{", text)) == 1 and bool((last_boxed(text) or "").strip())


TEMPLATES: dict[Template, Callable[[str], bool]] = {
    "think-answer": _think_answer,
    "think-boxed": _think_boxed,
    "answer-only": _answer_only,
    "boxed": _boxed,
}


@reward(
    "format",
    example={"completion": "<think>9 - 4</think> <answer>5</answer>", "reward": 1},
)
def format(completion: str, *, template: Template = "think-answer", partial: bool = False) -> float:
    """1 where the completion has the template's shape, else 0.

    ``think-answer`` is exactly one ``<think>...</think>`` and then one ``<answer>...</answer>``
    with only whitespace around and between them and an answer that is not empty. ``think-boxed``
    is one thinking and then text with one ``\\boxed{...}``; ``answer-only`` and ``boxed`` are the
    same without the thinking.

    Args:
        completion: The whole completion.
        template: The name of the shape.
        partial: Give a broken ``think-answer`` or ``answer-only`` 0.5 times the share of its tags
            that occur exactly once.
    """
    if TEMPLATES[template](completion):
        return 1.0
    return 0.5 * _tag_share(completion, template) if partial else 0.0


def _tag_share(completion: str, template: Template) -> float:
    names = [name for name in ("think", "answer") if name in template]
    tags = [tag for name in names for tag in (f"<{name}>", f"</{name}>")]
    if "boxed" in template:
        tags.append("\\boxed{")
        completion = completion if "think" in template else without_thinking(completion)
    return sum(completion.count(tag) == 1 for tag in tags) / len(tags)


@reward(
    "length_cosine",
    paper="2502.03373",
    base=OfAccuracy,
    example={
        "completion": "...",
        "accuracy": 1.0,
        "token_ids": [0] * 50,
        "settings": {"max_length": 100},
        "reward": 0.75,
    },
)
def length_cosine(
    completion: str,
    accuracy: float,
    token_ids: Sequence[int],
    *,
    max_length: Positive,
    correct: tuple[float, float] = (1.0, 0.5),
    wrong: tuple[float, float] = (-1.0, -0.5),
    correct_above: float = 0.5,
) -> float:
    """A reward that follows a half cosine from length 0 to ``max_length``, and is constant above.

    Right answers are worth less the longer they are, wrong ones cost less (Yeo et al. 2025,
    https://arxiv.org/abs/2502.03373).

    Args:
        completion: The whole completion.
        accuracy: Its accuracy, from the reward function that ``of`` names.
        token_ids: Its tokens.
        max_length: Tokens at which the far end is reached.
        correct: Value of a right answer at length 0 and at ``max_length``.
        wrong: The same of a wrong answer.
        correct_above: An answer is right above this accuracy.

    >>> length_cosine("...", 1.0, range(50), max_length=100)
    0.75
    """
    start, end = correct if accuracy > correct_above else wrong
    progress = min(1.0, _length(completion, token_ids) / max_length)
    return end + (start - end) * (1 + math.cos(math.pi * progress)) / 2


@reward(
    "length_bonus",
    paper="2503.21776",
    base=OfAccuracy,
    example={
        "completion": "...",
        "accuracy": 1.0,
        "group_accuracies": [1.0, 1.0],
        "token_ids": [0] * 400,
        "settings": {"min_length": 320, "max_length": 512},
        "reward": 0.2,
    },
)
def length_bonus(
    completion: str,
    accuracy: float,
    group_accuracies: Sequence[float],
    token_ids: Sequence[int],
    *,
    min_length: int,
    max_length: int,
    bonus: float = 0.2,
    correct_above: float = 0.5,
) -> float:
    """``bonus`` for a right answer of ``min_length`` to ``max_length`` tokens; else 0.

    Only in groups with two right answers or more, as in the code of Video-R1, which takes 320 to
    512 tokens (Feng et al. 2025, https://arxiv.org/abs/2503.21776).

    Args:
        completion: The whole completion.
        accuracy: Its accuracy, from the reward function that ``of`` names.
        group_accuracies: Accuracies of the completion's group.
        token_ids: Its tokens.
        min_length: Tokens from which the bonus is paid.
        max_length: Tokens up to which it is paid.
        bonus: The reward of such an answer.
        correct_above: An answer is right above this accuracy.

    >>> length_bonus("...", 1.0, [1.0, 1.0], range(400), min_length=320, max_length=512)
    0.2
    """
    if not 0 < min_length <= max_length:
        raise ValueError(
            f"min_length={min_length}: it must be above 0 and at most max_length={max_length}"
        )
    right = sum(a > correct_above for a in group_accuracies)
    fits = min_length <= _length(completion, token_ids) <= max_length
    return bonus if accuracy > correct_above and right > 1 and fits else 0.0


@reward(
    "overlong",
    paper="2503.14476",
    example={
        "completion": "...",
        "token_ids": [0] * 90,
        "settings": {"max_length": 100, "buffer": 20},
        "reward": -0.5,
    },
)
def overlong(completion: str, token_ids: Sequence[int], *, max_length: int, buffer: int) -> float:
    """DAPO's soft overlong penalty.

    0 up to ``max_length - buffer`` tokens, then linear down to -1 at ``max_length``, and -1 above.

    Yu et al. 2025, https://arxiv.org/abs/2503.14476, equation 13.

    Args:
        completion: The whole completion.
        token_ids: Its tokens.
        max_length: Tokens from which the penalty is -1.
        buffer: Tokens over which it grows.

    >>> overlong("...", range(90), max_length=100, buffer=20)
    -0.5
    """
    if not 0 < buffer <= max_length:
        raise ValueError(f"buffer={buffer}: it must be above 0 and at most max_length={max_length}")
    over = _length(completion, token_ids) - (max_length - buffer)
    return -min(1.0, max(0, over) / buffer) or 0.0


@reward(
    "repetition",
    paper="2502.03373",
    example={
        "completion": "...",
        "token_ids": [1, 2, 1, 2, 1, 2],
        "settings": {"ngram": 2},
        "reward": -0.6,
    },
)
def repetition(
    completion: str, token_ids: Sequence[int], *, ngram: Positive = 4, penalty: Penalty = -1.0
) -> float:
    """``penalty`` times the share of token n-grams that occurred before in the completion.

    Yeo et al. 2025, https://arxiv.org/abs/2502.03373, appendix on the repetition penalty.

    Args:
        completion: The whole completion.
        token_ids: Its tokens.
        ngram: Length of the n-grams; shorter completions repeat nothing.
        penalty: The value of a completion that only repeats, at most 0.

    >>> repetition("...", [1, 2, 1, 2, 1, 2], ngram=2)
    -0.6
    """
    total = _length(completion, token_ids) - ngram + 1
    if total <= 0:
        return 0.0
    distinct = len({tuple(token_ids[i : i + ngram]) for i in range(total)})
    return penalty * (1 - distinct / total) or 0.0


def _length(completion: str, token_ids: Sequence[int]) -> int:
    if completion and not len(token_ids):
        raise ValueError("this reward function counts tokens; give each row 'token_ids'")
    return len(token_ids)


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


def checked_steps(key_steps: Any) -> Sequence[KeyStep]:
    if isinstance(key_steps, str) or not isinstance(key_steps, Sequence) or not key_steps:
        raise BadGoldError(f"key_steps {key_steps!r:.60} is not a list of steps")
    if not all(way.strip() for step in key_steps for way in _written(step)):
        raise BadGoldError("one of the key_steps is empty")
    return key_steps


def _written(step: KeyStep) -> Sequence[str]:
    ways = [step] if isinstance(step, str) else list(step)
    return [str(way) for way in ways] or [""]


@reward(
    "steps",
    paper="2503.12937",
    gold=checked_steps,
    example={
        "completion": "<think>AB = 3, so the area is 9.</think>",
        "key_steps": ["AB = 3", ["area is 9", "S = 9"], "r = 3"],
        "reward": 2 / 3,
    },
)
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
        BadGoldError: If the record has no key steps, or an empty one.
    """
    patterns = [_ways(step) for step in checked_steps(key_steps)]
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


def _ways(step: KeyStep) -> re.Pattern[str]:
    """Matches any way of writing the step, but not inside a longer word or number."""
    ways = "|".join(re.escape(_plain(way)) for way in _written(step))
    return re.compile(rf"(?<![\w.])(?:{ways})(?!\w|\.\d)")


def _find(text: str, pattern: re.Pattern[str], position: int) -> int | None:
    match = pattern.search(text, position)
    return match.end() if match else None


def _plain(text: str) -> str:
    return re.sub(r"\s*([=+*/<>()^-])\s*", r"\1", normalise(text).casefold())


@reward("environment", example={"environment_reward": 0.5, "reward": 0.5})
def environment(environment_reward: float | None) -> float:
    """The sum of the rewards that the environment's ``step`` returned.

    Raises:
        ValueError: If the environment returned no reward.

    >>> environment(0.5)
    0.5
    """
    if environment_reward is None:
        raise ValueError("the environment gave no reward; let its step return one")
    return float(environment_reward)


@reward(
    "tool_use",
    example={
        "tool_calls": [{"name": "zoom", "error": "no box"}, {"name": "zoom", "error": None}],
        "reward": 1,
    },
)
def tool_use(tool_calls: Sequence[Mapping[str, Any]]) -> float:
    """1 if a tool was called and did not fail, else 0.

    >>> tool_use([{"name": "zoom", "error": "no box"}, {"name": "zoom", "error": None}])
    1.0
    """
    return float(any(call.get("error") is None for call in tool_calls))
