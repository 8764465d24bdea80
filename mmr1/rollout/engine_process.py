"""An engine in a separate process, behind the same protocol.

vLLM binds the OpenMP threads of the process it lives in, so the trainer must live elsewhere. Calls
go over a pipe, and media in shared memory beside it. Weights come by a ``Carrier``. With the one of
shared memory they take three steps:

1. ``EngineProcess.load_weights`` in the trainer copies them into shared memory;
2. ``load_shared_weights`` over the pipe makes the engine's process call ``VllmEngine.load_weights``
   on that memory;
3. that calls vLLM's ``reload_weights`` in each of its workers.

An engine that dies or hangs is replaced, gets the same weights, and is asked again.
"""

from __future__ import annotations

import contextlib
import logging
import multiprocessing as mp
import os
import socket
import struct
import sys
import time
import traceback
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from multiprocessing.connection import Connection
from multiprocessing.context import ForkServerContext, SpawnContext
from pathlib import Path
from typing import Any

import torch
import torch.multiprocessing

from mmr1.config import SamplingConfig
from mmr1.lifetime import die_with, start_persistent
from mmr1.logs import report_fault
from mmr1.rollout.carriers import Carrier, SharedMemoryCarrier
from mmr1.rollout.engine import PreparedRequest, Probe, StreamingEngine
from mmr1.rollout.forking import engine_context
from mmr1.rollout.media_pipe import receive, send
from mmr1.types import Completion, RolloutGroup

logger = logging.getLogger(__name__)

_UNGUARDED = (
    "its process imports the script that runs, so what a script does must be below\n"
    'if __name__ == "__main__":'
)
_UNREAD = 2
"""Chunks that wait for the engine: it takes none while as much as it may run waits with it, and the
media of others would fill the memory."""
POLL_S = 0.001  # wait for the next chunk, between two steps of the engine


class EngineError(RuntimeError):
    """The engine's process failed or died."""


class EngineLostError(EngineError):
    """The engine's process died, or did not answer in time; a new one may do better."""


class EngineHungError(EngineLostError):
    """The engine did not answer in time."""


class EngineProcess:
    """Runs ``build(*args)`` in another process and forwards the protocol's calls to it.

    Args:
        build: A module-level function that makes a ``StreamingEngine``.
        args: Its arguments; they are pickled.
        log: File that receives the process's output.
        threads: OpenMP threads of the process, or None for its own choice.
        timeout_s: Longest time that a call may take, or None for any.
        restarts: How often, in all, a process that died or hung is replaced.
        context: How the process begins; default: :func:`engine_context`.
        carrier: Brings it weights; default: by shared memory.
        pixels: The type in which it is sent the float32 pixels of media; default: as they are.

    Attributes:
        restarted: How often it was.
        settings: What the engine says of itself.

    Raises:
        ValueError: ``build`` refused its arguments (raised here with its message).
        EngineError: The process failed otherwise.
    """

    def __init__(
        self,
        build: Callable[..., StreamingEngine],
        args: tuple[Any, ...],
        log: Path,
        threads: int | None = None,
        timeout_s: float | None = None,
        restarts: int = 0,
        context: SpawnContext | ForkServerContext | None = None,
        carrier: Carrier | None = None,
        pixels: torch.dtype | None = None,
    ) -> None:
        self.restarted = 0
        self._pixels = pixels
        environment = dict(os.environ)  # a fork server has that of its own start
        if threads is not None:
            environment["OMP_NUM_THREADS"] = str(threads)
        self._target = (build, args, str(log), environment, threads)
        self._log = log
        self._context = context
        self._timeout_s = timeout_s
        self._restarts = restarts
        self._carrier = carrier or SharedMemoryCarrier()
        self._open: dict[int, PreparedRequest] = {}
        self._unsent: dict[int, PreparedRequest] = {}  # those that this process has not got
        self._closed = False
        self._start()

    def stream(
        self, chunks: Iterator[list[PreparedRequest]], sampling: SamplingConfig
    ) -> list[RolloutGroup]:
        sent: list[list[PreparedRequest]] = []

        def all_chunks() -> Iterator[list[PreparedRequest]]:
            """All chunks, those that a lost engine was sent first: its replacement needs them."""
            yield from list(sent)
            for chunk in chunks:
                sent.append(chunk)
                yield chunk

        return self._retry_if_lost(lambda: self._stream(all_chunks(), sampling))

    def advance(
        self,
        requests: Mapping[int, PreparedRequest],
        sampling: SamplingConfig,
        moment_s: float = 0.0,
    ) -> dict[int, Completion]:
        """See ``TurnEngine``. A replacement is given what the lost engine had not finished."""
        self._open.update(requests)
        self._unsent.update(requests)
        finished: dict[int, Completion] = self._retry_if_lost(
            lambda: self._ask("advance", self._unsent, sampling, moment_s)
        )
        self._unsent = {}
        for number in finished:
            del self._open[number]
        return finished

    def abandon(self) -> int:
        self._open, self._unsent = {}, {}
        return 0 if self._closed else self._call("abandon")

    def load_weights(self, weights: Mapping[str, torch.Tensor], version: int) -> None:
        self._retry_if_lost(lambda: self._carrier.bring(self._ask, weights, version))

    def probe(self, prepared: Sequence[PreparedRequest]) -> list[Probe]:
        return self._call("probe", prepared)

    def close(self) -> None:
        """End the process: ask, then terminate, then kill."""
        self._closed = True
        self._end()

    def _end(self) -> None:
        with contextlib.suppress(OSError):
            self._pipe.close()
        if self._process.pid is None:  # it could not be started
            return
        for stop in (lambda: None, self._process.terminate, self._process.kill):
            stop()
            self._process.join(timeout=5)
            if not self._process.is_alive():
                return

    def _start(self) -> None:
        context = self._context or engine_context()  # a fork server that was killed begins anew
        self._pipe, child_end = context.Pipe()
        if self._timeout_s is not None:
            limit_sends(self._pipe, self._timeout_s)
        self._process = context.Process(
            target=_engine_main, args=(child_end, *self._target), name="mmr1-engine"
        )
        try:
            _start_process(self._process)
            child_end.close()  # so that the pipe ends when the process does
            self.settings: str = self._receive(
                timeout_s=None
            )  # loading a large model takes as long as it takes
        except BaseException as error:
            if self._process.pid is not None and not isinstance(error, Exception):
                self._process.kill()  # Ctrl-C: it may import for a while and see no closed pipe
            self.close()
            raise

    def _call(self, method: str, *args: Any) -> Any:
        return self._retry_if_lost(lambda: self._ask(method, *args))

    def _retry_if_lost(self, ask: Callable[[], Any]) -> Any:
        """The engine's answer; a lost engine is replaced, and asked again once.

        Nothing that a lost engine sampled was received, so no completion is used twice.
        """
        try:
            return ask()
        except EngineLostError as error:
            if self._closed or self.restarted == self._restarts:
                raise
            self.restarted += 1
            message = f"{error}\nreplaced, {self.restarted} of {self._restarts} times"
            self._write_log(message)
            kind = "engine/hung" if isinstance(error, EngineHungError) else "engine/died"
            report_fault(logger, kind, message)
            self._replace()
            return ask()

    def _replace(self) -> None:
        """Start a new process with the weights of the old one."""
        self._process.kill()
        self._end()
        self._start()
        self._unsent = dict(self._open)
        self._carrier.bring_again(self._ask)

    def _ask(self, method: str, *args: Any) -> Any:
        self._send((method, args))
        return self._receive(self._timeout_s)

    def _stream(
        self, chunks: Iterator[list[PreparedRequest]], sampling: SamplingConfig
    ) -> list[RolloutGroup]:
        """Hand over chunk after chunk while the engine works on those it has."""
        self._send(("stream", (sampling,)))
        unread = 0
        try:
            for chunk in chunks:
                if unread == _UNREAD:
                    self._receive(self._timeout_s)
                    unread -= 1
                self._send(chunk)
                unread += 1
        except (ValueError, OSError):  # a medium could not be prepared: the engine need not know
            self._end_of_chunks(unread)
            raise
        return self._end_of_chunks(unread)

    def _end_of_chunks(self, unread: int) -> Any:
        self._send(None)
        for _ in range(unread):
            self._receive(self._timeout_s)
        return self._receive(self._timeout_s)

    def _send(self, message: Any) -> None:
        try:
            send(self._pipe, message, self._pixels)
        except BlockingIOError as error:
            raise EngineHungError(self._timeout_message()) from error
        except OSError as error:
            raise EngineLostError(self._death_message()) from error

    def _receive(self, timeout_s: float | None) -> Any:
        try:
            if timeout_s is not None and not self._pipe.poll(timeout_s):
                raise EngineHungError(self._timeout_message())
            kind, value = receive(self._pipe)
        except (EOFError, OSError) as error:
            raise EngineLostError(self._death_message()) from error
        if kind == "refused":
            raise ValueError(value)
        if kind == "failed":
            raise EngineError(f"the rollout engine failed; its log is {self._log}\n{value}")
        return value

    def _timeout_message(self) -> str:
        return (
            f"the rollout engine has not answered for {self._timeout_s:.0f} s "
            f"(rollout.timeout_s); its log is {self._log}"
        )

    def _write_log(self, line: str) -> None:
        with contextlib.suppress(OSError), self._log.open("a") as log:
            log.write(f"{line}\n")  # a full disk is no reason to lose the engine

    def _death_message(self) -> str:
        self._process.join(timeout=5)
        died = f"the rollout engine died (exit code {self._process.exitcode})"
        if not self._log.exists():
            return f"{died} before it began; {_UNGUARDED}"
        tail = "\n".join(self._log.read_text(errors="replace").splitlines()[-8:])
        return f"{died}; its log is {self._log} and ends with:\n{tail}"


def limit_sends(pipe: Connection, seconds: float) -> None:
    """Make a send without progress raise BlockingIOError after so many seconds."""
    with socket.fromfd(pipe.fileno(), socket.AF_UNIX, socket.SOCK_STREAM) as end:
        whole, part = divmod(seconds, 1)
        limit = struct.pack("ll", int(whole), int(part * 1e6))
        end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, limit)


_ENDING_S = 10.0
"""For a fork server that was killed: it takes no more engines, and cannot be waited for yet."""


def _start_process(process: Any) -> None:
    """Start a process, which may outlive the calling thread: a rollout thread ends before it."""
    until = time.monotonic() + _ENDING_S
    while True:
        try:
            return start_persistent(process.start)
        except ConnectionRefusedError:
            if time.monotonic() > until:
                raise
            time.sleep(0.01)


def _engine_main(
    pipe: Connection,
    build: Callable[..., StreamingEngine],
    args: tuple[Any, ...],
    log: str,
    environment: Mapping[str, str],
    threads: int | None,
) -> None:
    """Build the engine, then answer calls until the pipe ends: the main function of the process."""
    _redirect_output(log)
    die_with(os.getppid())  # the trainer, or the fork server that ends with it
    trainer = mp.parent_process()
    if trainer is None or not trainer.is_alive():
        return
    os.environ.clear()
    os.environ.update(environment)
    if threads is not None:
        torch.set_num_threads(threads)
    engine = _answer(pipe, lambda: build(*args), reply=False)
    if engine is None:
        return
    try:
        _answer_calls(pipe, engine)
    finally:
        engine.close()


def _answer_calls(pipe: Connection, engine: Any) -> None:
    """Answer calls until the trainer closes its end or is gone."""
    send(pipe, ("ok", getattr(engine, "settings", "")))
    shared: dict[str, torch.Tensor] = {}
    turns = _Turns(engine)
    while True:
        try:
            turns.sample_until(pipe.poll)
            method, arguments = receive(pipe)
        except (EOFError, OSError):
            return
        turns.stop()
        if method == "share_weights":
            shared = arguments[0].tensors()
            send(pipe, ("ok", None))
        elif method == "load_shared_weights":
            version = arguments[0]
            _answer(pipe, lambda: engine.load_weights(shared, version))  # noqa: B023
        elif method == "stream":
            _answer(pipe, partial(_stream_chunks, engine, pipe, *arguments))
        elif method in ("advance", "abandon"):
            _answer(pipe, partial(getattr(turns, method), *arguments))
        else:
            _answer(pipe, lambda: getattr(engine, method)(*arguments))  # noqa: B023


class _Turns:
    """The engine as a ``TurnEngine`` that samples on between two calls of ``advance``.

    It does so where a moment is given: the trainer's thread may be late to ask again, since another
    one holds its interpreter. Any other call ends it, for weights may come in several calls.
    """

    def __init__(self, engine: Any) -> None:
        self._engine = engine
        self._under_way: set[int] = set()
        self._ended: dict[int, Completion] = {}  # for the next call
        self._sampling: SamplingConfig | None = None
        self._failure: Exception | None = None

    def advance(
        self, requests: Mapping[int, PreparedRequest], sampling: SamplingConfig, moment_s: float
    ) -> dict[int, Completion]:
        if self._failure is not None:
            raise self._failure
        self._under_way |= requests.keys()
        ended, self._ended = self._ended, {}
        ended |= self._engine.advance(requests, sampling, 0.0 if ended else moment_s)
        self._under_way -= ended.keys()
        self._sampling = sampling if moment_s else None
        return ended

    def sample_until(self, called: Callable[[], bool]) -> None:
        while self._sampling is not None and self._under_way and not called():
            try:
                ended = self._engine.advance({}, self._sampling)
            except Exception as error:  # an answer to the next call
                self._failure = error
                return
            self._ended |= ended
            self._under_way -= ended.keys()

    def stop(self) -> None:
        self._sampling = None

    def abandon(self) -> int:
        lost = sum(len(completion.token_ids) for completion in self._ended.values())
        self._under_way, self._ended = set(), {}
        return lost + int(self._engine.abandon())


def _stream_chunks(
    engine: StreamingEngine, pipe: Connection, sampling: SamplingConfig
) -> list[RolloutGroup]:
    chunks = _chunks(pipe)
    try:
        return engine.stream(chunks, sampling)
    finally:
        deque(chunks, maxlen=0)  # after a failure: what comes next is to be read as a call


def _chunks(pipe: Connection) -> Iterator[list[PreparedRequest]]:
    """Chunks from the trainer, up to its None; an empty one if nothing has come yet.

    Each is acknowledged to the trainer.
    """
    while True:
        if not pipe.poll(POLL_S):
            yield []
        elif (chunk := receive(pipe)) is None:
            return
        else:
            send(pipe, ("ok", None))
            yield chunk


def _answer(pipe: Connection, call: Callable[[], Any], reply: bool = True) -> Any:
    """Run one call and send its outcome; a ValueError is the user's, all others are ours."""
    try:
        value = call()
    except ValueError as error:
        traceback.print_exc()
        send(pipe, ("refused", str(error)))
        return None
    except Exception:
        traceback.print_exc()
        send(pipe, ("failed", traceback.format_exc(limit=-4)))
        return None
    if reply:
        send(pipe, ("ok", value))
    return value


def _redirect_output(log: str) -> None:
    Path(log).parent.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    os.dup2(descriptor, sys.stdout.fileno())
    os.dup2(descriptor, sys.stderr.fileno())
    os.close(descriptor)
