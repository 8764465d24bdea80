"""A server with OpenAI's chat API behind which a rollout engine samples.

It listens on this machine alone. The API key of a request names its episode.
"""

from __future__ import annotations

import asyncio
import json
import logging
import threading
import time
from collections.abc import AsyncIterator, Callable, Mapping
from concurrent.futures import Future
from functools import cache
from typing import Any, Protocol

from pydantic import BaseModel, ConfigDict, ValidationError
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from mmr1.rewards.http.guard import Guard
from mmr1.rewards.http.post import read_json
from mmr1.serving import http_server, listen, read_body
from mmr1_contrib.agents.turns import Turn

logger = logging.getLogger(__name__)
MODEL = "policy"
MAX_BODY = 64 << 20
"""Bytes of a request."""
GUARD = Guard()
"""Neither another machine's name nor a page in a browser reaches it."""
_CLOSE_S = 30.0
_IGNORED = (
    "temperature", "top_p", "seed", "frequency_penalty", "presence_penalty", "logit_bias",
    "response_format", "tool_choice", "parallel_tool_calls", "reasoning_effort", "functions",
)  # fmt: skip


class RefusedError(ValueError):
    """A request is not answered with a turn.

    Attributes:
        code: As the API names the reason.
    """

    def __init__(self, message: str, code: str = "invalid_request_error") -> None:
        super().__init__(message)
        self.code = code


class Session(Protocol):
    """The part of an episode that the server calls, in its own thread."""

    def ask(self, body: Mapping[str, Any], retried: bool) -> Future[Turn]:
        """The turn that a request asks for. Raises ValueError if the request is refused."""
        ...


class AgentServer:
    """The server, in a separate thread, at a free port.

    Args:
        session: The episode that an API key names; None if there is none.
    """

    def __init__(self, session: Callable[[str], Session | None]) -> None:
        self._session = session
        routes = [
            Route("/v1/chat/completions", self._chat, methods=["POST"]),
            Route("/v1/models", self._models),
        ]
        self._socket = listen("127.0.0.1", 0)
        self.base_url = f"http://127.0.0.1:{self._socket.getsockname()[1]}/v1"
        self._server = http_server(Starlette(routes=routes))
        self._thread = threading.Thread(
            target=self._server.run, args=([self._socket],), name="agent server", daemon=True
        )
        self._thread.start()

    def close(self) -> None:
        """Stop the server; safe to call twice."""
        self._server.should_exit = True
        self._thread.join(_CLOSE_S)
        self._socket.close()

    async def _models(self, request: Request) -> Response:
        model = {"id": MODEL, "object": "model", "created": 0, "owned_by": "mmr1"}
        return JSONResponse({"object": "list", "data": [model]})

    async def _chat(self, request: Request) -> Response:
        if refused := GUARD.refusal(request.headers, posts=True):
            return _error(*refused, "invalid_request_error")
        key = request.headers.get("authorization", "").rpartition(" ")[2]
        if (session := self._session(key)) is None:
            return _error(401, "the API key names no episode that is under way", "invalid_api_key")
        try:
            body = _read(await read_body(request, MAX_BODY))
            retried = request.headers.get("x-stainless-retry-count", "0") != "0"
            turn = await asyncio.wrap_future(session.ask(body, retried))
        except RefusedError as error:
            return _error(400, str(error), error.code)
        except HTTPException as error:
            return _error(error.status_code, error.detail, "invalid_request_error")
        except ValueError as error:
            return _error(400, str(error), "invalid_request_error")
        except asyncio.CancelledError:
            return _error(503, "the episode is over", "server_error")
        answer = _answer(turn, body)
        if body.get("stream"):
            usage = bool((body.get("stream_options") or {}).get("include_usage"))
            return StreamingResponse(_events(answer, usage), media_type="text/event-stream")
        return JSONResponse(answer)


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
    body: dict[str, Any] = read_json(data, finite=True)
    try:
        _Body.model_validate(body)
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(map(str, first["loc"])) or "the request"
        raise RefusedError(f"{place}: {first['msg']}") from error
    if (body.get("n") or 1) != 1:
        raise RefusedError("n=1 only: send the request again for another answer")
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


def _error(status: int, message: str, code: str) -> Response:
    kind = "invalid_request_error" if status < 500 else "server_error"
    return JSONResponse({"error": {"message": message, "type": kind, "code": code}}, status)


def _answer(turn: Turn, body: Mapping[str, Any]) -> dict[str, Any]:
    assert turn.reply is not None
    finish = "tool_calls" if turn.reply.ids else "length" if turn.truncated else "stop"
    logprobs = None
    if body.get("logprobs"):
        listed: list[dict[str, Any]] = [
            {"token": f"token_id:{id_}", "logprob": value, "bytes": None, "top_logprobs": []}
            for id_, value in zip(turn.ids, turn.logprobs, strict=True)
        ]
        logprobs = {"content": listed, "refusal": None}
    usage = {
        "prompt_tokens": len(turn.prompt),
        "completion_tokens": len(turn.ids),
        "total_tokens": len(turn.prompt) + len(turn.ids),
    }
    return {
        "id": f"chatcmpl-{turn.seed:x}",
        "object": "chat.completion",
        "created": int(time.time()),
        "model": str(body.get("model", MODEL)),
        "choices": [
            {
                "index": 0,
                "message": turn.reply.message,
                "finish_reason": finish,
                "logprobs": logprobs,
            }
        ],
        "usage": usage,
    }


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
