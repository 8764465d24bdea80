"""The trainer's end of the front for agent programs: it starts the front, and answers what it asks.

The front, :mod:`mmr1_contrib.agents.front`, listens on this machine alone. The API key of a request
names its episode.
"""

from __future__ import annotations

import json
import logging
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import CancelledError, Future
from functools import partial
from typing import Any, BinaryIO, Protocol

from mmr1.lifetime import start_persistent
from mmr1.logs import report_fault
from mmr1.rollout.engine_process import EngineError
from mmr1.serving import listen
from mmr1_contrib.agents.front import MODEL, error_content
from mmr1_contrib.agents.turns import Turn

logger = logging.getLogger(__name__)
SEND_S = 30
"""Seconds without progress of an answer to the front, after which it is replaced."""


class RefusedError(ValueError):
    """A request is not answered with a turn.

    Attributes:
        code: Name of the reason in the API.
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
    """The front, in a process of its own, at a free port. One that dies is replaced.

    Args:
        session: The episode that an API key names; None if there is none.

    Raises:
        EngineError: If the front cannot be started.
    """

    def __init__(self, session: Callable[[str], Session | None]) -> None:
        self._session = session
        self._listener = listen("127.0.0.1", 0)
        self.base_url = f"http://127.0.0.1:{self._listener.getsockname()[1]}/v1"
        self._lock = threading.Lock()
        self._closed = False
        self._thread = threading.Thread(
            target=self._serve, args=(self._start(),), name="agent server", daemon=True
        )
        self._thread.start()

    def close(self) -> None:
        """End the front; safe to call twice."""
        self._closed = True
        self._process.kill()
        self._thread.join()
        self._listener.close()

    def _start(self) -> BinaryIO:
        """Start the front; what it asks."""
        self._channel, theirs = socket.socketpair()
        limit = struct.pack("ll", SEND_S, 0)
        self._channel.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, limit)
        with theirs:
            self._process = start_persistent(partial(_start_front, self._listener, theirs))
        asked = self._channel.makefile("rb")
        if not asked.readline():
            raise EngineError(f"the server for agent programs ended at its start ({_FRONT})")
        return asked

    def _serve(self, asked: BinaryIO) -> None:
        """Answer one front after the other, in a thread."""
        while True:
            with asked, self._channel:
                for line in asked:
                    self._answer(**json.loads(line))
            self._process.wait()
            if self._closed:
                return
            report_fault(
                logger,
                "agents/front_died",
                "the server for agent programs died and is started again; clients send again what "
                "it had not answered",
            )
            try:
                asked = self._start()
            except EngineError as error:
                report_fault(logger, "agents/front_lost", f"{error}; no program reaches the policy")
                self._listener.close()
                return
            if self._closed:
                self._process.kill()

    def _answer(
        self, ticket: str, key: str, body: dict[str, Any] | None = None, retried: bool = False
    ) -> None:
        """Answer a request; one without a body asks whether the key is known."""
        if (session := self._session(key)) is None:
            unknown = RefusedError("the API key names no episode under way", "invalid_api_key")
            return self._refuse(ticket, unknown, 401)
        if body is None:
            return self._send(ticket, 200, {})
        try:
            turn = session.ask(body, retried)
        except ValueError as refused:
            return self._refuse(ticket, refused)
        turn.add_done_callback(lambda done: self._answer_turn(ticket, body, done))

    def _answer_turn(self, ticket: str, body: Mapping[str, Any], done: Future[Turn]) -> None:
        try:
            self._send(ticket, 200, _completion(done.result(), body))
        except ValueError as refused:
            self._refuse(ticket, refused)
        except CancelledError:
            self._refuse(ticket, RefusedError("the episode is over", "server_error"), 503)

    def _refuse(self, ticket: str, refused: ValueError, status: int = 400) -> None:
        code = getattr(refused, "code", "invalid_request_error")
        self._send(ticket, status, error_content(status, str(refused), code))

    def _send(self, ticket: str, status: int, content: Any) -> None:
        answer = {"ticket": ticket, "status": status, "content": content}
        try:
            with self._lock:
                self._channel.sendall(json.dumps(answer).encode() + b"\n")
        except OSError:  # it is dead, or takes nothing in
            self._process.kill()


_FRONT = "mmr1_contrib.agents.front"


def _start_front(listener: socket.socket, channel: socket.socket) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-m", _FRONT, str(listener.fileno())],
        stdin=channel.fileno(),
        stdout=subprocess.DEVNULL,
        pass_fds=(listener.fileno(),),
        start_new_session=True,  # Ctrl-C and a closed terminal are for the trainer
    )


def _completion(turn: Turn, body: Mapping[str, Any]) -> dict[str, Any]:
    """A turn as the API answers."""
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
