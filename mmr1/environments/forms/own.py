"""mmr1's own form of an environment, ``reset(sample)`` and ``step(action)``; its coroutines."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

from mmr1.types import Sample


@dataclass(frozen=True, slots=True)
class StepResult:
    """An environment's answer to a turn.

    Attributes:
        observation: Texts and pictures for the policy.
        done: The conversation is over.
        reward: A number, or None.
        verbatim: The observation has the chat template's own tokens in its text.
    """

    observation: Any
    done: bool
    reward: Any
    verbatim: bool = False


class OwnEpisode:
    """One conversation with an object of the class."""

    def __init__(self, environment: Callable[..., Any], options: Mapping[str, Any]) -> None:
        self._environment = environment(**options)

    def reset(self, sample: Sample, prompt: str) -> None:
        """Raises ValueError if it returns something."""
        if awaited(self._environment.reset(sample)) is not None:
            raise ValueError(
                "reset returned something; the conversation begins with the record's own"
            )

    def step(self, action: str) -> StepResult:
        observation, done, reward = awaited(self._environment.step(action))
        return StepResult(observation, bool(done), reward)


def awaited(value: Any) -> Any:
    """The result of a call; a coroutine is run to its end.

    All run in one loop, as what an environment keeps may belong to it.
    """
    return _loop().run_until_complete(value) if inspect.iscoroutine(value) else value


@cache
def _loop() -> asyncio.AbstractEventLoop:
    return asyncio.new_event_loop()
