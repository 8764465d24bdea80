"""The code in the processes of tools: behind their walls, with JSON values as results."""

from __future__ import annotations

import errno
import inspect
import math
import socket
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import cache, lru_cache
from typing import Any, get_args, get_type_hints

from PIL import Image

from mmr1.environments.calls import call_of
from mmr1.environments.custom import load_environment
from mmr1.environments.mcp_servers import PROGRAM, is_server_list, servers_of
from mmr1.environments.pictures import Picture, Video, picture, to_parts
from mmr1.environments.styles import (
    BrokenToolError,
    SpokenEnvironment,
    SpokenEpisode,
    ToolClass,
    ToolEpisode,
    awaited,
    is_tool_file,
    provide_modules,
    tool_file,
    tool_styles,
)
from mmr1.environments.toolbox import TOOLS
from mmr1.types import MediaRef
from mmr1.vision.images import load_image

MEDIA: dict[Any, str] = {Picture: "picture", Image.Image: "image", Video: "video"}
"""What a parameter of such a type is given."""


Media = Mapping[str, tuple[str, bytes, Sequence[int]]]
"""For each parameter that is given a medium: which kind, its bytes, and the size that the model
saw."""


def warm_up(walls: bool) -> None:
    """Provide the styles' modules in the zygote, whose imports every worker then has.

    Args:
        walls: They block the network. The error that a tool then gets names the key.
    """
    provide_modules()
    if walls:
        sys.addaudithook(_explain_network)


def _explain_network(event: str, arguments: tuple[Any, ...]) -> None:
    """Raise before the walls do, which can only say that an operation is not permitted."""
    internet = event == "socket.__new__" and arguments[1] in (socket.AF_INET, socket.AF_INET6)
    if internet or event == "socket.getaddrinfo":
        raise PermissionError(
            errno.EPERM, "the sandbox has no network; set environment.sandbox=null"
        )


def prepare(specs: Sequence[str]) -> bool:
    """Import the tools and the parser. Raises ValueError if one cannot be."""
    for spec in specs:
        if is_server_list(spec):
            servers_of(spec, PROGRAM)
            continue
        _ = tool_file(spec) if is_tool_file(spec) else TOOLS.load(spec)
    return True


def check_environment(spec: str, options: Mapping[str, Any]) -> bool:
    """Load an environment. See load_environment."""
    load_environment(spec, options)
    return True


@lru_cache(64)
def load_functions(spec: str) -> dict[str, Callable[..., Any]]:
    """The functions behind a name, by their own names: one, or a list as TRL's ``tools``.

    Raises:
        ValueError: If the name leads to no function.
    """
    found = TOOLS.load(spec)
    functions = list(found) if isinstance(found, list | tuple) else [found]
    for function in functions:
        if inspect.isclass(function):
            in_files = [style for style in tool_styles() if style.suffixes]
            files = [
                f"tools of {style.name} by their {style.suffixes[0]} file" for style in in_files
            ]
            named = [*files, "an environment in environment.type"]
            raise ValueError(f"the tool '{spec}' is a class; name {', and '.join(named)}")
        if not inspect.isfunction(function):
            raise ValueError(f"the tool '{spec}' is a {type(function).__name__}, not a function")
    return {function.__name__: function for function in functions}


def media_parameters(tool: Callable[..., Any]) -> dict[str, str]:
    """The parameters that are given media, and which."""
    hints = get_type_hints(tool)
    return {n: MEDIA[hint] for n, hint in hints.items() if n != "return" and hint in MEDIA}


def shows_pictures(tool: Callable[..., Any]) -> bool:
    """True if its return type has a picture."""
    return _names_picture(get_type_hints(tool).get("return"))


def _names_picture(hint: Any) -> bool:
    return hint in (Picture, Image.Image) or any(map(_names_picture, get_args(hint)))


def call_tool(
    spec: str,
    name: str,
    arguments: Mapping[str, Any],
    media: Media,
    space: Any,
    max_pixels: int,
    max_characters: int,
) -> dict[str, Any]:
    """Call a function.

    Args:
        spec: Name in the configuration.
        name: Name of the function.
        arguments: Arguments that the policy wrote.
        media: Media that the tool is given.
        space: Space of a box's numbers.
        max_pixels, max_characters: Limits of the result.

    Returns:
        ``parts`` as :func:`pictures.to_parts` writes them, and ``reward``, None.

    Raises:
        Exception: Whatever the tool raises.
    """
    if is_server_list(spec):
        contents = servers_of(spec, PROGRAM).call(name, arguments)
        return read_contents(contents, max_pixels, max_characters)
    tool = load_functions(spec)[name]
    bound = inspect.signature(tool).bind(**{**arguments, **_given(media, space)})
    value = awaited(tool(*bound.args, **bound.kwargs))
    return {"parts": to_parts(value, max_pixels, max_characters), "reward": None}


def read_contents(
    contents: Sequence[str | bytes], max_pixels: int, max_characters: int
) -> dict[str, Any]:
    """The answer of an MCP server as :func:`call_tool` returns it: texts, and files of pictures."""
    value = [c if isinstance(c, str) else load_image(MediaRef("image", data=c)) for c in contents]
    return {"parts": to_parts(value, max_pixels, max_characters), "reward": None}


def check_parser(spec: str) -> None:
    """Read an empty turn, which a policy may write too. Raises ValueError if that fails."""
    try:
        parse(spec, "")
    except Exception as error:  # whatever it raises
        raise ValueError(
            f"environment.parser '{spec}' does not read an empty turn: {type(error).__name__}: "
            f"{error}; it is a function from a turn's text to a list of calls"
        ) from error


def parse(spec: str, text: str) -> list[dict[str, Any]]:
    """Read the calls in a turn by a custom parser.

    Raises:
        ValueError: If the parser returns anything but a list of ``{"name", "arguments"}``.
    """
    calls = _parser(spec)(text)
    if not isinstance(calls, list | tuple):
        raise ValueError(f"the parser '{spec}' returned a {type(calls).__name__}, not a list")
    read = [call_of(call) for call in calls]
    if wrong := next((call for call in read if call.error), None):
        raise ValueError(f"the parser '{spec}' returned a call that is none: {wrong.error}")
    return [{"name": call.name, "arguments": dict(call.arguments)} for call in read]


@cache
def _parser(spec: str) -> Callable[[str], Any]:
    parser: Callable[[str], Any] = TOOLS.load(spec)
    return parser


_tools: dict[int, dict[str, ToolEpisode]] = {}
_spoken: dict[int, SpokenEpisode] = {}
"""What this process keeps of conversations, by their numbers."""


def begin_tools(number: int, specs: Sequence[str], options: Mapping[str, Any], sample: Any) -> str:
    """Begin a conversation with tools that keep something from call to call.

    Returns:
        What they add to the last message of the user.

    Raises:
        Exception: Whatever they raise.
    """
    episodes = {spec: _tool_episode(spec, options) for spec in specs}
    opening = "".join(episode.begin(sample) for episode in episodes.values())
    _tools[number] = episodes
    return opening


def _tool_episode(spec: str, options: Mapping[str, Any]) -> ToolEpisode:
    if is_tool_file(spec):
        return tool_file(spec).episode()
    environment = load_environment(spec, options)
    assert isinstance(environment, ToolClass)
    return environment.episode()


def call_stateful_tool(
    number: int,
    spec: str,
    name: str,
    arguments: Mapping[str, Any],
    media: Media,
    images: Sequence[bytes],
    space: Any,
    max_pixels: int,
    max_characters: int,
) -> dict[str, Any]:
    """:func:`call_tool` of such a tool; nothing if the conversation is not here.

    Args:
        images: All pictures that the conversation has shown, for a tool that asks for them.

    Returns:
        ``parts`` and ``reward``; ``broken``, a message, where the tool returned another form.
    """
    if number not in _tools:
        return {}
    arguments = {**arguments, **_given(media, space)}
    try:
        value, reward = _tools[number][spec].call(name, arguments, images)
    except BrokenToolError as error:
        return {"broken": str(error)}
    try:
        paid = as_number(reward, name)
    except ValueError as error:
        return {"broken": str(error)}
    return {"parts": to_parts(value, max_pixels, max_characters), "reward": paid}


def end_tools(number: int) -> dict[str, Any]:
    """End the conversation: its ``reward``; nothing if it is not here.

    Raises:
        Exception: Whatever the tools raise.
    """
    if number not in _tools:
        return {}
    rewards = [as_number(e.end(), "the environment") for e in _tools.pop(number).values()]
    given = [reward for reward in rewards if reward is not None]
    return {"reward": sum(given) if given else None}


def reset(number: int, spec: str, options: Mapping[str, Any], sample: Any, prompt: str) -> bool:
    """Begin a conversation with an environment that reads the text of a turn.

    Raises:
        Exception: Whatever the environment raises.
    """
    environment = load_environment(spec, options)
    assert isinstance(environment, SpokenEnvironment)
    episode = environment.episode()
    episode.reset(sample, prompt)
    _spoken[number] = episode
    return True


def step(number: int, action: str, max_pixels: int, max_characters: int) -> dict[str, Any]:
    """The environment's answer: ``parts``, ``done``, ``reward`` and ``verbatim``; nothing if it is
    not here.

    Raises:
        Exception: Whatever the environment raises.
    """
    if number not in _spoken:
        return {}
    heard = _spoken[number].step(action)
    if heard.verbatim and len(heard.observation[0]) > max_characters:
        raise ValueError(
            f"it answered {len(heard.observation[0]):,} characters, and environment.max_characters "
            f"is {max_characters:,}: raise it, as a text with tokens of the template is not cut"
        )
    parts = to_parts(heard.observation, max_pixels, max_characters)
    reward = as_number(heard.reward, "step")
    return {"parts": parts, "done": heard.done, "reward": reward, "verbatim": heard.verbatim}


def forget(number: int) -> bool:
    """Drop the conversation."""
    _spoken.pop(number, None)
    return True


def as_number(reward: Any, name: str) -> float | None:
    if reward is None:
        return None
    if hasattr(reward, "item"):  # a number of numpy or torch
        try:
            reward = reward.item()
        except (ValueError, RuntimeError) as error:
            raise ValueError(f"{name} returned no single number as reward: {error}") from error
    if isinstance(reward, bool) or not isinstance(reward, int | float):
        raise ValueError(f"{name} returned a {type(reward).__name__} as reward, not a number")
    if not math.isfinite(reward):
        raise ValueError(f"{name} returned {reward} as reward")
    return float(reward)


def _given(media: Media, space: Any) -> dict[str, Any]:
    """The media of a call in the types of its parameters."""
    given: dict[str, Any] = {}
    for name, (kind, data, seen) in media.items():
        if kind == "video":
            given[name] = Video(data)
            continue
        shown = picture(data, seen, space)
        given[name] = shown if kind == "picture" else shown.image
    return given
