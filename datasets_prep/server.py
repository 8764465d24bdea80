"""A model that is served over OpenAI's chat API, as by ``vllm serve``.

This package so needs no rollout engine.
"""

from __future__ import annotations

import base64
import json
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Self, TypeVar

from mmr1.rewards.http.addresses import key_headers, parse_address
from mmr1.rewards.http.post import Failure, JsonPost, LoopThread
from mmr1.rewards.judges.replies import Reply, read_chat_completions
from mmr1.types import MediaRef, Message, Sample, TextPart

PARALLEL = 16
"""Requests under way at a time."""
RETRIES = 5  # with pauses of 8 s in all: what was sampled would be lost
TIMEOUT_S = 600.0
"""Seconds for one request."""
REPLY_BYTES = 1 << 26
Item = TypeVar("Item")
Result = TypeVar("Result")


class Server:
    """An OpenAI-compatible server to sample from, by any number of threads. To be closed.

    Args:
        url: Base URL, up to and including ``/v1``.
        model: The model's name on the server.
        temperature: Sampling temperature.
        max_tokens: Length limit of one reply.
        api_key_env: Environment variable that holds the server's key.

    Raises:
        ValueError: The address cannot be read, or the environment lacks the key.
    """

    def __init__(
        self,
        url: str,
        model: str,
        temperature: float = 1.0,
        max_tokens: int = 1024,
        api_key_env: str | None = None,
    ) -> None:
        address = parse_address(f"{url.rstrip('/')}/chat/completions")
        headers = key_headers(api_key_env)
        self._post = JsonPost([address], headers, retries=RETRIES, timeout_s=TIMEOUT_S)
        self._thread = LoopThread()
        self.sampling = {"model": model, "temperature": temperature, "max_tokens": max_tokens}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._thread.close(self._post.close)

    def replies(self, messages: Sequence[Message], count: int, of: str) -> list[Reply]:
        """``count`` sampled replies to a conversation about the record ``of``.

        A server that gives fewer than it is asked for is asked again.

        Raises:
            ValueError: The server does not answer, or its answer cannot be read.
        """
        chat = [_chat_message(m) for m in messages]
        replies: list[Reply] = []
        while len(replies) < count:
            asked = {**self.sampling, "messages": chat, "n": count - len(replies)}
            body = json.dumps(asked).encode()
            answer = self._thread.run(self._post.ask(body, read_chat_completions, REPLY_BYTES))
            if isinstance(answer, Failure):
                raise ValueError(f"no answers for {of}: {answer.error}")
            replies += answer
        return replies[:count]


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
    mime = "video/mp4" if media.kind == "video" else "image/png"
    return f"data:{mime};base64,{base64.b64encode(media.read()).decode()}"


def in_order(
    items: Iterable[Item], work: Callable[[Item], Result], parallel: int = PARALLEL
) -> Iterator[tuple[Item, Result]]:
    """Each item with its result, some of them made ahead; items are taken as they are needed.

    What is under way when an error ends it is not waited for: closing the server ends that.
    """
    pending: deque[tuple[Item, Future[Result]]] = deque()
    pool = ThreadPoolExecutor(parallel)
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
        pool.shutdown(wait=False, cancel_futures=True)
