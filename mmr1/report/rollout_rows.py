"""What the page reads of a line of rollouts; more may be in it."""

from __future__ import annotations

from typing import Any, Literal, NotRequired

from pydantic import ConfigDict, TypeAdapter
from typing_extensions import TypedDict

_ANY_MORE = ConfigDict(extra="allow", strict=True)


class _Medium(TypedDict):
    __pydantic_config__ = _ANY_MORE  # type: ignore[misc]

    kind: Literal["image", "video"]
    path: str | None
    digest: str
    seen: NotRequired[list[int] | None]
    options: NotRequired[dict[str, Any] | None]


class _Turn(TypedDict):
    __pydantic_config__ = _ANY_MORE  # type: ignore[misc]

    role: str
    text: str
    media: list[_Medium]
    answers: NotRequired[list[list[dict[str, Any]]]]


class _Completion(TypedDict):
    __pydantic_config__ = _ANY_MORE  # type: ignore[misc]

    text: str
    reward: float | int | None
    components: dict[str, Any]
    status: str
    turns: NotRequired[list[_Turn]]


class _Row(TypedDict):
    __pydantic_config__ = _ANY_MORE  # type: ignore[misc]

    id: str
    prompt: str
    answer: Any
    task: str | None
    media: list[_Medium]
    completions: list[_Completion]


ROLLOUT: TypeAdapter[Any] = TypeAdapter(_Row)
