"""What runs in the processes of tools: behind their walls, with JSON values back."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Any, get_type_hints

from PIL import Image

from mmr1.environments.calls import call_of
from mmr1.environments.pictures import Picture, Video, picture, to_parts
from mmr1.environments.toolbox import TOOLS
from mmr1.registry import Registry

MEDIA: dict[Any, str] = {Picture: "picture", Image.Image: "image", Video: "video"}
"""What a parameter of such a type is given."""

PLUGINS = Registry("environment", {})


def imported() -> None:
    """What the zygote runs: this module and what it imports are then in every worker."""


@lru_cache(64)
def load_tool(spec: str) -> Callable[..., Any]:
    """The function behind a name. Raises ValueError if there is none."""
    tool = TOOLS.load(spec)
    if not inspect.isfunction(tool):
        raise ValueError(f"the tool '{spec}' is a {type(tool).__name__}, not a function")
    return tool


def media_parameters(tool: Callable[..., Any]) -> dict[str, str]:
    """The parameters that are given media, and which."""
    hints = get_type_hints(tool)
    return {n: MEDIA[hint] for n, hint in hints.items() if n != "return" and hint in MEDIA}


def call_tool(
    spec: str,
    arguments: Mapping[str, Any],
    media: Mapping[str, tuple[str, bytes, Sequence[int]]],
    space: Any,
    max_pixels: int,
    max_characters: int,
) -> list[dict[str, str]]:
    """What a tool returns, as :func:`pictures.to_parts` writes it.

    Args:
        spec: Its name.
        arguments: Of the policy.
        media: For each parameter that is given a medium: which kind, its bytes, and the size that
            the model saw.
        space: What the numbers of a box mean.
        max_pixels, max_characters: Of what it returns.

    Raises:
        Exception: Whatever the tool raises.
    """
    tool = load_tool(spec)
    given: dict[str, Any] = {}
    for name, (kind, data, seen) in media.items():
        if kind == "video":
            given[name] = Video(data)
            continue
        shown = picture(data, seen, space)
        given[name] = shown if kind == "picture" else shown.image
    bound = inspect.signature(tool).bind(**{**arguments, **given})
    return to_parts(tool(*bound.args, **bound.kwargs), max_pixels, max_characters)


def parse(spec: str, text: str) -> list[dict[str, Any]]:
    """The calls that a parser of one's own reads in a turn.

    Raises:
        ValueError: It returns anything but a list of ``{"name", "arguments"}``.
    """
    calls = PLUGINS.load(spec)(text)
    if not isinstance(calls, list | tuple):
        raise ValueError(f"the parser '{spec}' returned a {type(calls).__name__}, not a list")
    read = [call_of(call) for call in calls]
    if wrong := next((call for call in read if call.error), None):
        raise ValueError(f"the parser '{spec}' returned a call that is none: {wrong.error}")
    return [{"name": call.name, "arguments": dict(call.arguments)} for call in read]


_episodes: dict[int, Any] = {}
"""The environments of this process, by the number of the conversation."""


def check_environment(spec: str) -> bool:
    """Check that a class of one's own has ``reset`` and ``step``. Raises ValueError if not."""
    environment = PLUGINS.load(spec)
    for name in ("reset", "step"):
        if not callable(getattr(environment, name, None)):
            raise ValueError(f"environment '{spec}' has no method {name}; see docs/tools.md")
    return True


def reset(number: int, spec: str, options: Mapping[str, Any], sample: Any) -> bool:
    """Begin a conversation.

    Raises:
        Exception: Whatever the environment raises.
    """
    environment = PLUGINS.load(spec)(**options)
    if environment.reset(sample) is not None:
        raise ValueError("reset returned something; the conversation begins with the record's own")
    _episodes[number] = environment
    return True


def step(number: int, action: str, max_pixels: int, max_characters: int) -> dict[str, Any]:
    """The environment's answer: ``parts``, ``done`` and ``reward``; nothing if it is not here.

    Raises:
        Exception: Whatever the environment raises.
    """
    if number not in _episodes:
        return {}
    observation, done, reward = _episodes[number].step(action)
    parts = to_parts(observation, max_pixels, max_characters)
    if reward is not None and not isinstance(reward, int | float):
        raise ValueError(f"step returned a {type(reward).__name__} as reward, not a number")
    if reward is not None and not math.isfinite(reward):
        raise ValueError(f"step returned {reward} as reward")
    return {"parts": parts, "done": bool(done), "reward": reward}


def forget(number: int) -> bool:
    """The conversation is over."""
    _episodes.pop(number, None)
    return True
