"""The input of a reward function, and the values it may return."""

from __future__ import annotations

import ast
import math
import re
import struct
import sysconfig
import traceback
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from decimal import Decimal
from pathlib import Path
from typing import Any

from mmr1.boxes import SpaceName
from mmr1.types import MediaRef, Message, Reward, Sample, Status, quickly_pickled


@quickly_pickled
@dataclass(frozen=True, slots=True)
class RewardItem:
    """One completion to be scored, with everything a reward function may ask for.

    Attributes:
        completion: The decoded text, special tokens left out; of a conversation with an environment
            the last turn.
        sample: The record it answers; ``sample.answer`` is the gold answer.
        prompt: The rendered prompt text.
        token_ids: The completion's tokens, a sequence of any type; length and repetition rewards
            count these.
        truncated: True when the length limit cut the completion off.
        group: Items of one prompt share this number.
        media_sizes: ``(width, height)`` in pixels the model saw, one per medium.
        grid_thw: ``(frames, rows, columns)`` of vision patches, one per medium.
        shuffled: Completions of the same prompt with its frames shuffled, for
            ``temporal_contrast``. None where nothing was shuffled; the bonus is then 0.
        messages: The turns of a conversation with an environment: ``{"role", "content"}``, and for
            answers of tools ``"images"``, the digests of their pictures. One without an
            environment.
        tool_calls: ``{"name", "arguments", "error"}`` of each call, in order.
        environment_reward: Reward of the environment; None if it gives none.
        model_space: Coordinate space in which the model writes boxes; None if it is not known.
        earlier: Values for a plugin that stands on other functions: ``scores``, their values by
            name, and with the option ``of`` ``accuracy`` and ``group_accuracy``.
    """

    completion: str
    sample: Sample
    prompt: str = ""
    token_ids: Sequence[int] = ()
    truncated: bool = False
    group: int = 0
    media_sizes: tuple[tuple[int, int], ...] = ()
    grid_thw: tuple[tuple[int, int, int], ...] = ()
    shuffled: tuple[str, ...] | None = None
    messages: tuple[Mapping[str, Any], ...] = ()
    tool_calls: tuple[Mapping[str, Any], ...] = ()
    environment_reward: float | None = None
    model_space: SpaceName | None = None
    earlier: Mapping[str, Any] = field(default_factory=dict)


def group_values(rewards: Sequence[tuple[int, Reward]]) -> dict[int, list[float]]:
    """The valid rewards of each group."""
    groups: dict[int, list[float]] = {}
    for group, reward in rewards:
        if reward.value is not None:
            groups.setdefault(group, []).append(reward.value)
    return groups


def group_means(rewards: Sequence[tuple[int, Reward]]) -> dict[int, float]:
    """The mean of the valid rewards of each group."""
    return {group: sum(values) / len(values) for group, values in group_values(rewards).items()}


def without_accuracy(of: str, reward: Reward) -> Reward:
    """An invalid reward, for a function that depends on ``of``, which has no valid reward."""
    return invalid(reward.status, f"no accuracy from '{of}': {reward.error}")


def without_bytes(sample: Sample) -> Sample:
    """The sample without encoded media; itself where it holds none."""
    if not any(medium.data for medium in sample.media):
        return sample
    messages = tuple(
        Message(message.role, tuple(_without_data(content) for content in message.parts))
        for message in sample.messages
    )
    return replace(sample, messages=messages)


def _without_data(content: Any) -> Any:
    return (
        replace(content, data=None) if isinstance(content, MediaRef) and content.data else content
    )


_TOLD = 280  # characters of an exception's own message; its place and an example stand behind it
_PATHS = {sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")}
_NOT_OWN = (*_PATHS, str(Path(__file__).parents[1]), "<")
_QUOTED_LIST = re.compile(r"\[\s*(['\"]).{0,10000}\1\s*,?\s*\]", re.DOTALL)


class BadGoldError(ValueError):
    """The gold answer cannot be read; the completion is not to blame."""


def plain_value(answer: Any) -> Any:
    """A gold answer as Python's own value, also a number of another library.

    A float that is a single-precision number exactly is what that number prints as: the 0.1 of a
    float32 column is 0.1, and not 0.10000000149011612.
    """
    if type(answer) in (str, int, bool):
        return answer
    if isinstance(answer, Decimal):
        return str(answer)
    if type(answer).__module__ == "numpy" and hasattr(answer, "tolist"):
        answer = answer.tolist()
    if isinstance(answer, float) and math.isfinite(answer):
        return _shortest(answer)
    return answer


def _shortest(number: float) -> float:
    if len(repr(number)) < 13:  # nobody would have written more digits of a short number
        return number
    try:
        (single,) = struct.unpack("f", struct.pack("f", number))
    except OverflowError:
        return number
    if single != number:
        return number
    for digits in range(6, 9):
        shorter = float(f"{number:.{digits}g}")
        if struct.pack("f", shorter) == struct.pack("f", number):
            return shorter
    return number


def references(answer: Any) -> tuple[Any, ...]:
    """The golds of a record; an answer has to meet one of them.

    A list of texts is several references, also where it is written as text (``['7', 'seven']``, as
    in MMMU). True is met by "true" and by "yes". All else is one reference.

    >>> references("['7', 'seven']"), references([7]), references(False)
    (('7', 'seven'), ([7],), ('false', 'no'))
    """
    if type(answer) is int or (type(answer) is str and answer[:1] != "["):
        return (answer,)
    answer = plain_value(answer)
    if isinstance(answer, bool):
        return ("true", "yes") if answer else ("false", "no")
    if isinstance(answer, str):
        answer = _listed(answer)
    if isinstance(answer, list | tuple) and answer and all(isinstance(a, str) for a in answer):
        return tuple(answer)
    return (answer,)


def _listed(text: str) -> list[str] | str:
    """A list of quoted texts that is written as text; the text itself where it is none."""
    if not _QUOTED_LIST.fullmatch(text):
        return text
    try:
        value = ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return text
    return value if value and all(isinstance(element, str) for element in value) else text


@dataclass(frozen=True, slots=True)
class Job:
    """Work for the sandbox, which reward functions return where their own process is unsafe.

    Attributes:
        target: ``"module:function"``, imported by the worker.
        args: Positional arguments; hashable where ``cached``, because equal jobs run once.
        cached: False for work whose result may differ from call to call.
        size: How many rewards it answers with.
    """

    target: str
    args: tuple[Any, ...]
    cached: bool = True
    size: int = 1


def no_answer() -> Reward:
    """The completion holds no answer: a valid 0, with its own status."""
    return Reward(0.0, Status.NO_ANSWER)


def unread(reason: str) -> Reward:
    """Return a valid 0 for an answer without a reading of the gold's type; see ``Status``."""
    return Reward(0.0, Status.UNREAD, error=_one_line(reason))


def invalid(status: Status, error: str) -> Reward:
    """A reward without a value; ``error`` becomes one line of at most 500 characters."""
    return Reward(None, status, error=_one_line(error))


def _one_line(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= 500 else f"{line[:497]}..."


def as_reward(value: Any) -> Reward:
    """A reward function's return value as a reward; anything but a finite number is invalid."""
    if type(value) is float and math.isfinite(value):
        return Reward(value)
    if isinstance(value, Reward):
        return _checked(value)
    if value is None:
        return invalid(Status.ERROR, "returned None, not a number")
    if isinstance(value, str | bytes):
        return invalid(Status.ERROR, f"returned text ({value[:40]!r}), not a number")
    try:
        number = float(value)
    except (TypeError, ValueError, OverflowError):
        return invalid(Status.ERROR, f"returned {type(value).__name__}, not a number")
    if not math.isfinite(number):
        return invalid(Status.ERROR, f"returned {number}, which is not finite")
    return Reward(number)


def _checked(reward: Reward) -> Reward:
    """A reward made by other code: itself when its numbers are numbers."""
    if not isinstance(reward.status, Status) or reward.status.valid != (reward.value is not None):
        return invalid(Status.ERROR, f"returned {reward.value} with the status {reward.status}")
    numbers = {"value": reward.value, **reward.components}
    for name, number in numbers.items():
        if number is None:
            continue
        if isinstance(number, bool) or not isinstance(number, int | float):
            return invalid(Status.ERROR, f"returned a Reward whose {name} is not a number")
        if not math.isfinite(number):
            return invalid(Status.ERROR, f"returned a Reward whose {name} is {number}, not finite")
    return reward


def reward_of_exception(error: BaseException) -> Reward:
    """The reward of a function that raised."""
    if isinstance(error, BadGoldError):
        return invalid(Status.BAD_GOLD, str(error))
    told = " ".join(f"{type(error).__name__}: {error}".split())
    told = told if len(told) <= _TOLD else f"{told[: _TOLD - 3]}..."
    where = [*_own_line(error), *getattr(error, "__notes__", ())]
    return invalid(Status.ERROR, f"{told} ({'; '.join(where)})" if where else told)


def _own_line(error: BaseException) -> list[str]:
    """``file:line`` of the innermost frame that is neither Python's, a package's nor ours."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if not frame.filename.startswith(_NOT_OWN)]
    return [f"{Path(own[-1].filename).name}:{own[-1].lineno}"] if own else []


def add_example(error: BaseException, item: RewardItem) -> None:
    """Note on an error what the function was called with."""
    sample = item.sample
    shown = {"sample": sample.id, "answer": sample.answer, "completion": item.completion}
    error.add_note(", ".join(f"{name} {value!r:.60}" for name, value in shown.items()))
