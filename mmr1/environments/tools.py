"""Tools as an environment: the calls of a turn, and their answers."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from mmr1.config import EnvironmentConfig
from mmr1.environments.calls import call_of, read_calls
from mmr1.environments.environment import Action, Answer, Episode, Shown
from mmr1.environments.schemas import Tool, described
from mmr1.environments.workers import ToolWorkers
from mmr1.registry import suggest
from mmr1.types import ContentPart, MediaRef, Message, Sample, TextPart, ToolCall
from mmr1.vision.images import image_size

_PNG = b"\x89PNG\r\n\x1a\n"


class ToolEnvironment:
    """An ``Environment``: a turn that calls no tool is the last one.

    Raises:
        ValueError: A tool cannot be loaded.
    """

    def __init__(self, config: EnvironmentConfig) -> None:
        self._config = config
        self._by_name = {tool.name: tool for tool in described(config)}
        self.tools: Sequence[str] = tuple(self._by_name)
        own = [config.parser] if config.parser else []
        self._workers = ToolWorkers(config, [*config.tools, *own])
        self._workers.start()

    def episode(self, sample: Sample) -> Episode:
        return _ToolEpisode(self)

    def close(self) -> None:
        self._workers.close()

    def answer(self, action: Action) -> Answer:
        """Run the calls of a turn one after another."""
        parser = self._config.parser
        if parser is None:
            calls = read_calls(action.text)
        else:
            read = self._workers.call("parse", parser, action.text)
            if read.error is not None:
                return Answer(failure=(read.status, f"{parser}: {read.error}"))
            calls = [call_of(call) for call in read.value]
        if not calls or action.last:
            return Answer(calls=tuple(map(self._not_run, calls)), cut=bool(calls))
        called = [self._call(call, action.shown) for call in calls]
        return Answer(tuple(message for _, message in called), tuple(call for call, _ in called))

    def _call(self, call: ToolCall, shown: Sequence[Shown]) -> tuple[ToolCall, Message]:
        """The call with its error, if it failed, and what the policy is told."""
        try:
            if call.error is not None:
                raise ValueError(call.error)
            tool = self._tool(call.name)
            arguments, media = _with_media(tool, call.arguments, shown)
            config = self._config
            limits = (config.boxes, config.max_pixels, config.max_characters)
            answer = self._workers.call("call_tool", tool.spec, arguments, media, *limits)
            if answer.error is not None:
                raise ValueError(answer.error)
            parts = read_parts(answer.value, config)
        except (ValueError, OSError) as error:
            problem = str(error)[: self._config.max_characters]
            problem = problem.encode(errors="replace").decode()  # no lone surrogates
            told = Message("tool", (TextPart(f"Error: {problem}"),))
            return replace(call, name=self._known(call.name), error=problem), told
        return call, Message("tool", parts)

    def _not_run(self, call: ToolCall) -> ToolCall:
        error = call.error or "not run: the conversation ended with this turn"
        return replace(call, name=self._known(call.name), error=error)

    def _known(self, name: str) -> str:
        return name if name in self._by_name else ""

    def _tool(self, name: str) -> Tool:
        if name not in self._by_name:
            known = ", ".join(self._by_name)
            raise ValueError(
                f"there is no tool '{name}'{suggest(name, list(self._by_name))}; there is: {known}"
            )
        return self._by_name[name]


class _ToolEpisode:
    """Tools keep nothing from turn to turn."""

    def __init__(self, environment: ToolEnvironment) -> None:
        self._environment = environment

    def begin(self) -> Answer:
        return Answer()

    def step(self, action: Action) -> Answer:
        return self._environment.answer(action)

    def end(self) -> None:
        """Nothing to forget."""


def _with_media(
    tool: Tool, arguments: Mapping[str, Any], shown: Sequence[Shown]
) -> tuple[dict[str, Any], dict[str, tuple[str, bytes, tuple[int, int]]]]:
    """The arguments without the numbers of media, and the media that they name."""
    media = {}
    for name, kind in tool.media.items():
        wanted = "video" if kind == "video" else "image"
        of_kind = [s for s in shown if s.media.kind == wanted]
        number = arguments.get(name, 0)
        if type(number) is not int or not 0 <= number < len(of_kind):
            word = "video" if wanted == "video" else "picture"
            raise ValueError(
                f"{name}={number!r}: the conversation has {len(of_kind)} {word}s, numbered from 0"
            )
        chosen = of_kind[number]
        media[name] = (kind, chosen.media.read(), chosen.seen)
    return {k: v for k, v in arguments.items() if k not in tool.media}, media


def read_parts(value: Any, config: EnvironmentConfig) -> tuple[ContentPart, ...]:
    """What a tool's process sent, every part checked: the process may be anybody's.

    Raises:
        ValueError: It is no list of texts and pictures within the limits.
    """
    if not isinstance(value, list):
        raise ValueError("it returned what is no answer")
    return tuple(_part(part, config) for part in value)


def _part(part: Any, config: EnvironmentConfig) -> ContentPart:
    text = part.get("text") if isinstance(part, dict) else None
    if isinstance(text, str):
        return TextPart(text[: config.max_characters + 100].encode(errors="replace").decode())
    if not isinstance(part, dict) or not isinstance(part.get("image"), str):
        raise ValueError("it returned what is neither text nor a picture")
    try:
        data = base64.b64decode(part["image"], validate=True)
    except binascii.Error as error:
        raise ValueError(f"it returned a picture that is none: {error}") from None
    if not data.startswith(_PNG):
        raise ValueError("it returned a picture that is no PNG")
    ref = MediaRef("image", data=data)
    width, height = image_size(ref)
    if width * height > config.max_pixels:
        raise ValueError(f"it returned a picture of {width}x{height} pixels")
    return replace(ref, size=(width, height))
