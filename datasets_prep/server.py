"""A model that is served over OpenAI's chat API, as by ``vllm serve``.

This package so needs no rollout engine.
"""

from __future__ import annotations

import base64
import json
import time
import urllib.request
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar
from urllib.error import HTTPError

from mmr1.rewards.http.post import refuses
from mmr1.types import MediaRef, Message, Sample, TextPart

ATTEMPTS = 3
PARALLEL = 16
"""Requests under way at a time."""
TOLD_BYTES = 500
"""Of what a server says of its refusal."""
Item = TypeVar("Item")
Result = TypeVar("Result")


class Reply(NamedTuple):
    """What a model says, and whether it ended before the limit of tokens."""

    text: str
    complete: bool


@dataclass(frozen=True, slots=True)
class Server:
    """An OpenAI-compatible server to sample from.

    Attributes:
        url: Base URL, up to and including ``/v1``.
        model: The model's name on the server.
        temperature: Sampling temperature.
        max_tokens: Length limit of one reply.
        timeout_s: Seconds for one request.
    """

    url: str
    model: str
    temperature: float = 1.0
    max_tokens: int = 1024
    timeout_s: float = 600.0

    def replies(self, messages: Sequence[Message], count: int, of: str) -> list[Reply]:
        """``count`` sampled replies to a conversation about the record ``of``.

        Raises:
            ValueError: The server does not answer, or its answer cannot be read.
        """
        body = {
            "model": self.model,
            "messages": [_chat_message(m) for m in messages],
            "n": count,
            "temperature": self.temperature,
            "max_tokens": self.max_tokens,
        }
        request = urllib.request.Request(
            f"{self.url.rstrip('/')}/chat/completions",
            json.dumps(body).encode(),
            {"Content-Type": "application/json"},
        )
        for attempt in range(1, ATTEMPTS + 1):
            try:
                with urllib.request.urlopen(request, timeout=self.timeout_s) as response:
                    return [_reply(choice) for choice in json.load(response)["choices"]]
            except (OSError, KeyError, TypeError, ValueError) as error:
                # Retry only what a busy server causes: a refusal and a wrong answer are final.
                refused = isinstance(error, HTTPError) and refuses(error.code)
                if isinstance(error, OSError) and not refused and attempt < ATTEMPTS:
                    time.sleep(0.5 * attempt)
                    continue
                told = f"{error}: {_text_of(error)}" if isinstance(error, HTTPError) else error
                raise ValueError(f"{self.url} gives no answers for {of}: {told}") from error
        raise AssertionError("the last attempt returns or raises")


def _text_of(error: HTTPError) -> str:
    """The beginning of what the server says."""
    return " ".join(error.read(TOLD_BYTES).decode(errors="replace").split())


def _reply(choice: dict[str, Any]) -> Reply:
    text = choice["message"]["content"]
    if not isinstance(text, str):
        raise ValueError("a reply without text")
    return Reply(text, choice.get("finish_reason") != "length")


def prompt_of(sample: Sample) -> Sequence[Message]:
    """The conversation without a demonstration at its end."""
    return sample.messages[: len(sample.messages) - (sample.messages[-1].role == "assistant")]


def _chat_message(message: Message) -> dict[str, Any]:
    """A message of the chat API, with media as data URLs."""
    content: list[dict[str, Any]] = []
    for part in message.parts:
        if isinstance(part, TextPart):
            content.append({"type": "text", "text": part.text})
        else:
            content.append({"type": f"{part.kind}_url", f"{part.kind}_url": {"url": _url(part)}})
    return {"role": message.role, "content": content}


def _url(media: MediaRef) -> str:
    if media.kind == "audio":
        raise ValueError(f"{media}: servers are not asked about sound; take a rollout engine")
    mime = "video/mp4" if media.kind == "video" else "image/png"
    return f"data:{mime};base64,{base64.b64encode(media.read()).decode()}"


def in_order(
    items: Iterable[Item], work: Callable[[Item], Result], parallel: int = PARALLEL
) -> Iterator[tuple[Item, Result]]:
    """Each item with its result, some of them made ahead; items are taken as they are needed."""
    pending: deque[tuple[Item, Future[Result]]] = deque()
    with ThreadPoolExecutor(parallel) as pool:
        try:
            for item in items:
                pending.append((item, pool.submit(work, item)))
                if len(pending) > 2 * parallel:
                    first, result = pending.popleft()
                    yield first, result.result()
            while pending:
                first, result = pending.popleft()
                yield first, result.result()
        finally:
            for _, result in pending:
                result.cancel()
