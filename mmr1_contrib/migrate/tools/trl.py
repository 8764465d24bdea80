"""TRL's ``environment_factory``: public methods are tools, ``reset`` is given the columns.

https://huggingface.co/docs/trl/openenv
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

from mmr1.environments.styles import Candidate, ToolClass, ToolStyle, awaited, required
from mmr1.types import Sample

_NO_TOOLS = ("reset", "get_reward")


def environment_of(candidate: Candidate) -> ToolClass | None:
    """Return the environment whose ``reset`` takes all columns; None for any other object.

    Raises:
        ValueError: If the policy could call nothing.
    """
    reset = candidate.parameters("reset")
    if reset is None or not any(p.kind is p.VAR_KEYWORD for p in reset):
        return None
    if required(reset) and candidate.parameters("step") is not None:
        return None
    factory, options = candidate.found, candidate.options
    return ToolClass(factory, _tools(candidate.shown), lambda: TrlEpisode(factory, options))


def _tools(shown: Any) -> dict[str, Any]:
    """Return the methods that the policy may call, by name."""
    shown = shown if inspect.isclass(shown) else type(shown)
    names = [n for n in dir(shown) if not n.startswith("_") and n not in _NO_TOOLS]
    tools = {name: method for name in names if (method := _method(shown, name)) is not None}
    if not tools:
        raise ValueError("it has no public method besides reset, so the policy could do nothing")
    return tools


def _method(shown: type, name: str) -> Any:
    """The function behind a method of an object or of its class; None for anything else."""
    found = inspect.getattr_static(shown, name)
    found = found.__func__ if isinstance(found, classmethod) else found
    return found if inspect.isfunction(found) else None


class TrlEpisode:
    """One conversation with an environment."""

    def __init__(self, factory: Callable[..., Any], options: Mapping[str, Any]) -> None:
        self._environment = factory(**options)

    def begin(self, sample: Sample) -> str:
        """Reset the environment; returns an addition to the last message of the user.

        Raises:
            ValueError: ``reset`` returns what is not text.
        """
        opening = awaited(self._environment.reset(**_columns(sample)))
        if opening is not None and not isinstance(opening, str):
            raise ValueError(f"reset returned a {type(opening).__name__}, not a text or None")
        return opening or ""

    def call(self, name: str, arguments: Mapping[str, Any], images: Any) -> tuple[Any, None]:
        """Call the method and return its result. Raises whatever it raises."""
        method = getattr(self._environment, name)
        return awaited(method(**arguments)), None

    def end(self) -> Any:
        """The result of ``get_reward``; without one the attribute ``reward``, if there is one."""
        if hasattr(self._environment, "get_reward"):
            return awaited(self._environment.get_reward())
        return getattr(self._environment, "reward", None)


def _columns(sample: Sample) -> dict[str, Any]:
    """The record as a row of TRL's datasets."""
    return {
        "id": sample.id,
        "question": sample.question,
        "answer": sample.answer,
        "solution": sample.answer,
        "task": sample.task,
        **sample.meta,
        "prompt": [{"role": m.role, "content": m.text} for m in sample.messages],
    }


STYLE = ToolStyle(
    "TRL",
    ("class: reset(self, **columns), and a public method for each tool",),
    environment_of,
)
