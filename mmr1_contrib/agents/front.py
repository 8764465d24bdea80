"""The front of agent programs: OpenAI's chat API, in a process of its own.

Anything may reach a port: connections by the hundred, bodies that are no requests. They use up the
descriptors and the memory of this process, not those of the trainer. A request whose key names an
episode goes to the trainer as a line of JSON, and a line comes back. It ends with the trainer.
"""

from __future__ import annotations

import asyncio
import json
import logging
import socket
import sys
from collections.abc import AsyncIterator, Mapping
from functools import cache
from typing import Any
from uuid import uuid4

from pydantic import BaseModel, ConfigDict, ValidationError
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from mmr1.rewards.http.guard import Guard
from mmr1.rewards.http.post import read_json
from mmr1.serving import http_server, read_body

logger = logging.getLogger(__name__)
MODEL = "policy"
MAX_BODY = 64 << 20
"""Bytes of a request, and of an answer."""
GUARD = Guard()
"""Neither another machine's name nor a page in a browser reaches it."""
_IGNORED = (
    "temperature", "top_p", "seed", "frequency_penalty", "presence_penalty", "logit_bias",
    "response_format", "tool_choice", "parallel_tool_calls", "reasoning_effort", "functions",
)  # fmt: skip


def error_content(status: int, message: str, code: str = "invalid_request_error") -> dict[str, Any]:
    """An error as the API writes it; ``code`` names the reason."""
    kind = "invalid_request_error" if status < 500 else "server_error"
    return {"error": {"message": message, "type": kind, "code": code}}


class Front:
    """The routes of the API, and what waits for the trainer."""

    def __init__(self) -> None:
        self._waiting: dict[str, asyncio.Future[dict[str, Any]]] = {}
        self._trainer: asyncio.StreamWriter | None = None

    async def serve(self, listener: socket.socket, channel: socket.socket) -> None:
        """Serve until the trainer hangs up."""
        answers, self._trainer = await asyncio.open_connection(sock=channel, limit=MAX_BODY)
        routes = [
            Route("/v1/chat/completions", self._chat, methods=["POST"]),
            Route("/v1/models", self._models),
        ]
        server = http_server(Starlette(routes=routes))
        serving = asyncio.create_task(server.serve([listener]))
        self._trainer.write(b"ready\n")
        async for line in answers:
            answer = json.loads(line)
            if (waiting := self._waiting.pop(answer["ticket"], None)) is not None:
                waiting.set_result(answer)
        server.should_exit = True
        await serving

    async def _ask(self, **asked: Any) -> dict[str, Any]:
        """Ask the trainer."""
        assert self._trainer is not None
        ticket = uuid4().hex  # also of the front that a dead one is replaced by
        waiting = self._waiting[ticket] = asyncio.get_running_loop().create_future()
        self._trainer.write(json.dumps({"ticket": ticket, **asked}).encode() + b"\n")
        await self._trainer.drain()
        return await waiting

    async def _models(self, request: Request) -> Response:
        model = {"id": MODEL, "object": "model", "created": 0, "owned_by": "mmr1"}
        return JSONResponse({"object": "list", "data": [model]})

    async def _chat(self, request: Request) -> Response:
        if refused := GUARD.refusal(request.headers, posts=True):
            return _refusal(*refused)
        key = request.headers.get("authorization", "").rpartition(" ")[2]
        answer = await self._ask(key=key)
        if answer["status"] == 200:
            try:
                body = _read(await read_body(request, MAX_BODY))
            except HTTPException as unread:
                return _refusal(unread.status_code, unread.detail)
            except ValueError as malformed:
                return _refusal(400, str(malformed))
            retried = request.headers.get("x-stainless-retry-count", "0") != "0"
            answer = await self._ask(key=key, body=body, retried=retried)
        if answer["status"] == 200 and body.get("stream"):
            usage = bool((body.get("stream_options") or {}).get("include_usage"))
            return StreamingResponse(
                _events(answer["content"], usage), media_type="text/event-stream"
            )
        return JSONResponse(answer["content"], answer["status"])


def _refusal(status: int, message: str) -> Response:
    return JSONResponse(error_content(status, message), status)


class _Message(BaseModel):
    """The types of a message's values; what they say is read with the episode."""

    model_config = ConfigDict(extra="allow")

    role: str
    content: str | list[dict[str, Any]] | None = None
    tool_calls: list[dict[str, Any]] | None = None
    tool_call_id: str | None = None


class _Body(BaseModel):
    """The types of a request's values."""

    model_config = ConfigDict(extra="allow")

    messages: list[_Message]
    tools: list[dict[str, Any]] | None = None
    stream: bool | None = None
    stream_options: dict[str, Any] | None = None
    n: int | None = None
    max_tokens: int | None = None
    max_completion_tokens: int | None = None


def _read(data: bytes) -> dict[str, Any]:
    """Read a request. Raises ValueError, in one line, if it is none."""
    body: dict[str, Any] = read_json(data, finite=True)
    try:
        _Body.model_validate(body)
    except ValidationError as invalid:
        first = invalid.errors()[0]
        place = ".".join(map(str, first["loc"])) or "the request"
        raise ValueError(f"{place}: {first['msg']}") from invalid
    if (body.get("n") or 1) != 1:
        raise ValueError("n=1 only: send the request again for another answer")
    for name in _IGNORED:
        if body.get(name) is not None:
            _tell_ignored(name)
    return body


@cache
def _tell_ignored(name: str) -> None:
    logger.warning(
        "an agent program sends %s, which is not read: the policy learns from tokens that were "
        "sampled as the section rollout says, without guidance",
        name,
    )


async def _events(answer: Mapping[str, Any], with_usage: bool) -> AsyncIterator[str]:
    """The answer as server-sent events: one with the whole turn."""
    (choice,) = answer["choices"]
    delta = {name: value for name, value in choice["message"].items() if value is not None}
    if calls := delta.get("tool_calls"):
        delta["tool_calls"] = [{**call, "index": n} for n, call in enumerate(calls)]
    base = {**answer, "object": "chat.completion.chunk", "usage": None}
    begin = {
        "index": 0, "delta": delta, "finish_reason": None, "logprobs": choice["logprobs"]
    }  # fmt: skip
    end = {"index": 0, "delta": {}, "finish_reason": choice["finish_reason"]}
    chunks = [{**base, "choices": [begin]}, {**base, "choices": [end]}]
    if with_usage:
        chunks.append({**base, "choices": [], "usage": answer["usage"]})
    for chunk in chunks:
        yield f"data: {json.dumps(chunk)}\n\n"
    yield "data: [DONE]\n\n"


if __name__ == "__main__":
    asyncio.run(
        Front().serve(
            socket.socket(fileno=int(sys.argv[1])), socket.socket(fileno=sys.stdin.fileno())
        )
    )
