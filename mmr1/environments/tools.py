"""Tools as an environment: the calls of a turn, and their answers."""

from __future__ import annotations

import base64
import binascii
import logging
import math
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from itertools import count
from typing import Any

from mmr1.boxes import SpaceName
from mmr1.config import EnvironmentConfig, ToolsConfig
from mmr1.environments.calls import call_of, read_calls
from mmr1.environments.environment import Action, Answer, Ending, Episode, Opening, Shown
from mmr1.environments.mcp_servers import URL, for_processes, servers_of
from mmr1.environments.pictures import MAX_PARTS
from mmr1.environments.schemas import Tool, described
from mmr1.environments.workers import REPLACED, Budget, code_workers, tool_workers
from mmr1.logs import report_fault
from mmr1.registry import suggest
from mmr1.rewards.item import Job
from mmr1.rewards.sandbox import pool
from mmr1.types import ContentPart, MediaRef, Message, Sample, Status, TextPart, ToolCall
from mmr1.vision.images import image_size

logger = logging.getLogger(__name__)

_CUT_NOTE = 100
"""Characters for the note that a text was cut."""
_PNG = b"\x89PNG\r\n\x1a\n"


class ToolEnvironment:
    """An ``Environment``: a turn that calls no tool is the last one.

    Args:
        config: The section ``environment``.
        timeout_s: Seconds that the tools of one conversation may take together.
        model_space: Space of the model's boxes, for ``environment.boxes: model``; None where it is
            not known.

    Raises:
        ValueError: A tool cannot be loaded.
    """

    def __init__(
        self,
        config: EnvironmentConfig,
        timeout_s: float = math.inf,
        model_space: SpaceName | None = None,
    ) -> None:
        self.config = config
        self._timeout_s = timeout_s
        self._space = model_space if config.boxes == "model" else config.boxes
        self._by_name = {tool.name: tool for tool in described(config)}
        self.tools: Sequence[str] = tuple(self._by_name)
        self.kept = tuple(dict.fromkeys(t.spec for t in self._by_name.values() if t.kept))
        walls = config.sandbox is not None
        tools = for_processes(config.tools, walls) if isinstance(config, ToolsConfig) else self.kept
        specs = [*tools, *([config.parser] if config.parser else [])]
        prepare = Job("mmr1.environments.worker:prepare", (specs,))
        self.workers = tool_workers(config, specs, prepare)
        self._code_workers = code_workers(config)
        self._numbers = count()
        self._threads = ThreadPoolExecutor(config.workers, "tools")
        self.workers.start()
        if any(tool.alone for tool in self._by_name.values()):
            self._code_workers.start()

    def episode(self, sample: Sample) -> Episode:
        return _ToolEpisode(self, next(self._numbers), sample, Budget(self._timeout_s))

    def close(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)
        self.workers.close()
        self._code_workers.close()

    def answer(self, action: Action, number: int, budget: Budget) -> Answer:
        """Run the calls of a turn of conversation ``number``.

        One after another where a tool keeps something between calls, and else side by side.
        """
        parser = self.config.parser
        if parser is None:
            calls = read_calls(action.text)
        else:
            read = self.workers.call("parse", parser, action.text)
            if read.error is not None:
                return Answer(failure=(read.status, f"{parser}: {read.error}"))
            calls = [call_of(call) for call in read.value]
        if not calls or action.last:
            return Answer(calls=tuple(map(self._not_run, calls)), cut=bool(calls))
        run, rest = calls[: self.config.max_calls], calls[self.config.max_calls :]
        one_by_one = len(run) == 1 or any(self._is_stateful(call) for call in run)
        each = map if one_by_one else self._threads.map
        called: list[_Called] = []
        for done in each(lambda call: self._call(call, action.shown, number, budget), run):
            if done.lost is not None:
                return Answer(calls=tuple(c.call for c in called), failure=done.lost)
            called.append(done)
        called += map(self._too_many, rest)
        rewards = [done.reward for done in called if done.reward is not None]
        return Answer(
            tuple(done.told for done in called),
            tuple(done.call for done in called),
            reward=sum(rewards) if rewards else None,
        )

    def _is_stateful(self, call: ToolCall) -> bool:
        return call.name in self._by_name and self._by_name[call.name].kept

    def _call(self, call: ToolCall, shown: Sequence[Shown], number: int, budget: Budget) -> _Called:
        try:
            if call.error is not None:
                raise ValueError(call.error)
            tool = self._tool(call.name)
            if budget.is_spent:
                return _Called(call, lost=(Status.TIMEOUT, self._report_spent()))
            answer = self._run(tool, call.arguments, shown, number, budget)
            if tool.kept and answer.status in (Status.TIMEOUT, Status.KILLED):
                return _Called(call, lost=(answer.status, f"{tool.name}: {answer.error}"))
            if answer.error is not None:
                limit = self.config.max_characters
                raise ValueError(_cut(answer.error, limit) if tool.alone else answer.error)
            if tool.kept and not answer.value:
                return _Called(call, lost=(Status.KILLED, f"{tool.name}: {REPLACED}"))
            if tool.kept and "broken" in answer.value:
                return _Called(call, lost=(Status.ERROR, f"{tool.name}: {answer.value['broken']}"))
            told = Message("tool", read_parts(_parts_of(answer.value), self.config))
            # What the policy's code answers is its own word: it gives itself no reward.
            return _Called(call, told, _reward(answer.value) if tool.kept else None)
        except (ValueError, OSError) as error:
            return self._failed(call, str(error))

    def _failed(self, call: ToolCall, problem: str) -> _Called:
        problem = problem[: self.config.max_characters]
        problem = problem.encode(errors="replace").decode()  # no lone surrogates
        told = Message("tool", (TextPart(f"Error: {problem}"),))
        return _Called(replace(call, name=self._known(call.name), error=problem), told)

    def _too_many(self, call: ToolCall) -> _Called:
        return self._failed(call, f"not run: a turn may call {self.config.max_calls} tools")

    def _report_spent(self) -> str:
        problem = (
            f"the tools of one conversation took {self._timeout_s:g} s (rollout.timeout_s) together"
        )
        report_fault(logger, "environment/timeout", problem, level=logging.INFO)
        return problem

    def _run(
        self,
        tool: Tool,
        arguments: Mapping[str, Any],
        shown: Sequence[Shown],
        number: int,
        budget: Budget,
    ) -> pool.Answer:
        given, media = _with_media(tool, arguments, shown)
        config = self.config
        limits = (self._space, config.max_pixels, config.max_characters)
        if tool.remote:
            return self._ask_server(tool, given, budget)
        if not tool.kept:
            workers = self._code_workers if tool.alone else self.workers
            asked = (tool.spec, tool.name, given, media, *limits)
            return workers.call("call_tool", *asked, budget=budget)
        seen = [s.media for s in shown if tool.sees_pictures and s.media.kind == "image"]
        images = [picture.read() for picture in seen]
        kept = (number, tool.spec, tool.name, given, media, images, *limits)
        return self.workers.call("call_stateful_tool", *kept, worker=number, budget=budget)

    def _ask_server(self, tool: Tool, arguments: Mapping[str, Any], budget: Budget) -> pool.Answer:
        """Ask an MCP server from this process; its pictures are decoded in one of the workers."""
        begin = time.monotonic()
        try:
            server = servers_of(tool.spec, URL)
            contents = server.call(tool.name, arguments, self.config.timeout_s)
        finally:
            budget.spend(time.monotonic() - begin)
        limits = (self.config.max_pixels, self.config.max_characters)
        return self.workers.call("read_contents", contents, *limits, budget=budget)

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


@dataclass(frozen=True, slots=True)
class _Called:
    """The outcome of a call.

    Attributes:
        call: The call, with its error if it failed.
        told: Message that the policy reads.
        reward: Reward that the tool gave for it.
        lost: Why the tool can answer no further call of this conversation.
    """

    call: ToolCall
    told: Message = field(default=Message("tool", ()))
    reward: float | None = None
    lost: tuple[Status, str] | None = None


class _ToolEpisode:
    """One conversation; tools that keep something live in the process of its number."""

    def __init__(
        self, environment: ToolEnvironment, number: int, sample: Sample, budget: Budget
    ) -> None:
        self._environment, self._number, self._sample = environment, number, sample
        self._budget = budget

    def begin(self, prompt: str) -> Opening:
        environment = self._environment
        if not environment.kept:
            return Opening()
        arguments = (self._number, environment.kept, environment.config.arguments, self._sample)
        begun = environment.workers.call("begin_tools", *arguments, worker=self._number)
        if begun.error is not None:
            return Opening(failure=(begun.status, f"it cannot begin: {begun.error}"))
        text = str(begun.value)
        if len(text) > environment.config.max_characters:
            told = "reset returned more than environment.max_characters"
            return Opening(failure=(Status.ERROR, told))
        return Opening(text)

    def step(self, action: Action) -> Answer:
        return self._environment.answer(action, self._number, self._budget)

    def end(self) -> Ending:
        environment = self._environment
        if not environment.kept:
            return Ending()
        ended = environment.workers.call("end_tools", self._number, worker=self._number)
        if ended.error is not None:
            return Ending(failure=(ended.status, f"at its end: {ended.error}"))
        if not ended.value:
            return Ending(failure=(Status.KILLED, REPLACED))
        try:
            return Ending(_reward(ended.value))
        except ValueError as error:
            return Ending(failure=(Status.ERROR, str(error)))


def _cut(problem: str, length: int) -> str:
    """The beginning and the end of an error message; the end tells what went wrong."""
    if len(problem) <= length:
        return problem
    begin = max(length - 3, 0) // 2
    return f"{problem[:begin]}...{problem[-max(length - 3 - begin, 1) :]}"


def _parts_of(value: Any) -> Any:
    return value.get("parts") if isinstance(value, dict) else None


def _reward(answer: Mapping[str, Any]) -> float | None:
    """The reward in an answer, checked again here, as the process is not trusted."""
    reward = answer.get("reward")
    if reward is None:
        return None
    if type(reward) not in (int, float) or not math.isfinite(reward):
        raise ValueError("it gave a reward that is not a number")
    return float(reward)


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
    """The parts that a tool's process sent, each checked, as the process is not trusted.

    Of more pictures than a conversation may have, one too many is read: that ends it.

    Raises:
        ValueError: If the answer is not a list of texts and images within the limits.
    """
    if not isinstance(value, list) or len(value) > MAX_PARTS:
        raise ValueError("it returned what is not an answer")
    parts: list[ContentPart] = []
    characters = config.max_characters + _CUT_NOTE
    pictures = config.max_images + 1
    for part in value:
        text = part.get("text") if isinstance(part, dict) else None
        if isinstance(text, str):
            parts.append(TextPart(text[:characters].encode(errors="replace").decode()))
            characters = max(0, characters - len(text))
        elif pictures:
            parts.append(_picture(part, config))
            pictures -= 1
    return tuple(parts)


def _picture(part: Any, config: EnvironmentConfig) -> MediaRef:
    if not isinstance(part, dict) or not isinstance(part.get("image"), str):
        raise ValueError("it returned what is neither text nor a picture")
    try:
        data = base64.b64decode(part["image"], validate=True)
    except binascii.Error as error:
        raise ValueError(f"it returned a picture that is none: {error}") from None
    if not data.startswith(_PNG):
        raise ValueError("it returned a picture that is not a PNG")
    ref = MediaRef("image", data=data)
    width, height = image_size(ref)
    if width * height > config.max_pixels:
        raise ValueError(f"it returned a picture of {width}x{height} pixels")
    return replace(ref, size=(width, height))
