"""The interface between conversations and environments."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from mmr1.types import MediaRef, Message, Sample, Status, ToolCall

Size = tuple[int, int]


@dataclass(frozen=True, slots=True)
class Shown:
    """A medium of the conversation, and the pixels ``(width, height)`` that the model saw."""

    media: MediaRef
    seen: Size


@dataclass(frozen=True, slots=True)
class Action:
    """A turn of the policy.

    Attributes:
        text: Without special tokens.
        shown: Media that the conversation has shown before it, in order.
        last: No further turn may follow, so nothing needs to be answered.
    """

    text: str
    shown: Sequence[Shown]
    last: bool


@dataclass(frozen=True, slots=True)
class Answer:
    """An environment's answer to an action.

    Attributes:
        messages: Messages of the role ``tool``, for the policy to read. None where the conversation
            ends.
        calls: The tools that the action called.
        cut: It ends because no turn may follow.
        reward: Reward of this action; None from an environment that gives none.
        failure: How the environment broke, and why.
        verbatim: The text of the messages has the chat template's own tokens.
    """

    messages: tuple[Message, ...] = ()
    calls: tuple[ToolCall, ...] = ()
    cut: bool = False
    reward: float | None = None
    failure: tuple[Status, str] | None = None
    verbatim: bool = False


@dataclass(frozen=True, slots=True)
class Opening:
    """The beginning of a conversation.

    Attributes:
        text: Added to the last message of the user.
        failure: Status and message of a failure, as of an ``Answer``.
    """

    text: str = ""
    failure: tuple[Status, str] | None = None


@dataclass(frozen=True, slots=True)
class Ending:
    """The end of a conversation.

    Attributes:
        reward: Reward of the whole conversation; None from an environment that gives none.
        failure: Status and message of a failure, as of an ``Answer``.
    """

    reward: float | None = None
    failure: tuple[Status, str] | None = None


class Episode(Protocol):
    """One conversation. Its calls wait for processes; they come from threads, one at a time."""

    def begin(self, prompt: str) -> Opening:
        """Begin before the first turn; ``prompt`` is the text that it continues from."""
        ...

    def step(self, action: Action) -> Answer: ...

    def end(self) -> Ending:
        """End the conversation."""
        ...


class Environment(Protocol):
    """Answers many conversations at a time."""

    @property
    def tools(self) -> Sequence[str]:
        """The names of the tools that may be called, for the metrics."""
        ...

    def episode(self, sample: Sample) -> Episode:
        """Begin a conversation about a sample."""
        ...

    def close(self) -> None:
        """End its processes; safe to call twice."""
        ...
