"""An engine in a separate process, behind the same protocol.

vLLM binds the OpenMP threads of the process it lives in, so the trainer must live elsewhere. Calls
go over a pipe, and media in shared memory beside it. Weights come by a ``Carrier``. With the one of
shared memory they take three steps:

1. ``EngineProcess.load`` in the trainer copies them into shared memory;
2. ``load_shared_weights`` over the pipe makes the engine's process call ``VllmEngine.load`` on that
   memory;
3. that calls vLLM's ``reload_weights`` in each of its workers.

An engine that dies or hangs is replaced, gets the same weights, and is asked again for what it had
under way. In its process a ``Worker`` answers, and lets it sample on between two calls.
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
from collections.abc import Callable, Mapping, Sequence
from multiprocessing.connection import Connection
from multiprocessing.context import ForkServerContext, SpawnContext
from pathlib import Path
from typing import Any

import torch
import torch.multiprocessing

from mmr1.lifetime import die_with, start_persistent
from mmr1.logs import report_fault
from mmr1.rollout.carriers import Carrier, SharedMemoryCarrier
from mmr1.rollout.forking import engine_context
from mmr1.rollout.media_pipe import receive, send
from mmr1.rollout.outstanding import Outstanding
from mmr1.rollout.prefetching import BoundedEngine
from mmr1.rollout.protocol import Finished, Probe, Request
from mmr1.rollout.shared_weights import SharedWeights
from mmr1.types import MediaRef, Prompt
from mmr1.vision.prepare import Medium

logger = logging.getLogger(__name__)

_UNGUARDED = (
    "its process imports the script that runs, so what a script does must be below\n"
    'if __name__ == "__main__":'
)


class EngineError(RuntimeError):
    """The engine's process failed or died."""


class EngineLostError(EngineError):
    """The engine's process died, or did not answer in time; a new one may do better."""


class EngineHungError(EngineLostError):
    """The engine did not answer in time."""


class EngineProcess:
    """Runs ``build(*args)`` in another process and forwards the protocol's calls to it.

    Args:
        build: A module-level function that makes a ``BoundedEngine``. It gets a function that
            gives media as they are prepared here, and the arguments.
        args: They are pickled.
        media: Prepares a medium.
        log: File that receives the process's output.
        threads: OpenMP threads of the process, or None for its own choice.
        timeout_s: Longest time that a call may take, or None for any.
        restarts: How often, in all, a process that died or hung is replaced.
        context: How the process begins; default: :func:`engine_context`.
        carrier: Brings it weights; default: by shared memory.
        pixels: The type in which it is sent the float32 pixels of media; default: as they are.
        together: It does not sample between two calls, so that what it samples together does not
            depend on when they come.

    Attributes:
        restarted: How often it was.
        is_full: It should be given no more requests until others have ended.
        settings: Settings that the engine reports of itself.

    Raises:
        ValueError: ``build`` refused its arguments (raised here with its message).
        EngineError: The process failed otherwise.
    """

    def __init__(
        self,
        build: Callable[..., BoundedEngine],
        args: tuple[Any, ...],
        media: Callable[[MediaRef], Medium],
        log: Path,
        threads: int | None = None,
        timeout_s: float | None = None,
        restarts: int = 0,
        context: SpawnContext | ForkServerContext | None = None,
        carrier: Carrier | None = None,
        pixels: torch.dtype | None = None,
        together: bool = False,
    ) -> None:
        self.restarted, self.is_full = 0, False
        self._media, self._pixels = media, pixels
        environment = dict(os.environ)  # a fork server has that of its own start
        if threads is not None:
            environment["OMP_NUM_THREADS"] = str(threads)
        self._target = (build, args, str(log), environment, threads, together)
        self._log = log
        self._context = context
        self._timeout_s = timeout_s
        self._restarts = restarts
        self._carrier = carrier or SharedMemoryCarrier()
        self._outstanding = Outstanding()
        self._waited_s = 0.0  # since a completion came
        self._closed = False
        self._start()

    def submit(self, requests: Sequence[Request]) -> list[int]:
        tickets = self._outstanding.add(requests)
        self._retry_if_lost(self._send_unsent)
        return tickets

    def poll(self, wait_s: float = 0.0) -> list[Finished]:
        def ask() -> list[Finished]:
            self._send_unsent()
            finished, self.is_full = self._ask("poll", wait_s)
            return self._outstanding.take(finished)

        return self._retry_if_lost(lambda: self._watched(ask)) if self._outstanding else []

    def cancel(self) -> int:
        self._outstanding.clear()
        self.is_full, self._waited_s = False, 0.0
        return 0 if self._closed else self._call("cancel")

    def load(self, weights: Mapping[str, torch.Tensor], version: int) -> None:
        self._retry_if_lost(lambda: self._carrier.bring(self._ask, weights, version))

    def probe(self, prompts: Sequence[Prompt]) -> list[Probe]:
        return self._call("probe", prompts)

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

    def _send_unsent(self) -> None:
        """Send what the engine has not got, with the media that it needs."""
        if requests := self._outstanding.unsent():
            media = {
                m.digest(): self._media(m) for request in requests for m in request.prompt.media
            }
            tickets, self.is_full = self._ask("submit", requests, media)
            self._outstanding.sent(tickets)

    def _watched(self, ask: Callable[[], list[Finished]]) -> list[Finished]:
        """Return finished work; an engine that answers and finishes nothing for long has hung."""
        began = time.monotonic()
        finished = ask()
        self._waited_s = 0.0 if finished else self._waited_s + time.monotonic() - began
        if self._timeout_s is not None and self._waited_s > self._timeout_s:
            raise EngineHungError(self._timeout_message())
        return finished

    def _call(self, method: str, *args: Any) -> Any:
        return self._retry_if_lost(lambda: self._ask(method, *args))

    def _retry_if_lost(self, ask: Callable[[], Any]) -> Any:
        """The engine's answer; a lost engine is replaced, and asked again once."""
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
        self._outstanding.lose()
        self._waited_s = 0.0
        self._carrier.bring_again(self._ask)

    def _ask(self, method: str, *args: Any) -> Any:
        self._send((method, args))
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
    build: Callable[..., BoundedEngine],
    args: tuple[Any, ...],
    log: str,
    environment: Mapping[str, str],
    threads: int | None,
    together: bool,
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
    media: dict[str, Medium] = {}
    engine = _answer(pipe, lambda: build(lambda ref: media[ref.digest()], *args), reply=False)
    if engine is None:
        return
    try:
        Worker(engine, media, together).answer_calls(pipe)
    finally:
        engine.close()


class Worker:
    """An engine at the other end of a pipe, which it lets sample on between two calls.

    The trainer's thread may be late to ask again, since another one holds its interpreter. Only
    ``submit`` and ``poll`` leave it sampling: weights may come in several calls, and no step may
    lie between them.

    Args:
        media: Where the engine finds those of the requests that it is given.
        together: It samples in ``poll`` alone.
    """

    def __init__(self, engine: BoundedEngine, media: dict[str, Medium], together: bool) -> None:
        self._engine, self._media, self._together = engine, media, together
        self._under_way = 0
        self._ended: list[Finished] = []  # for the next call
        self._shared: dict[str, torch.Tensor] = {}
        self._failure: Exception | None = None

    def answer_calls(self, pipe: Connection) -> None:
        """Answer until the trainer closes its end or is gone."""
        send(pipe, ("ok", getattr(self._engine, "settings", "")))
        own = (self.submit, self.poll, self.cancel, self.share_weights, self.load_shared_weights)
        methods = {method.__name__: method for method in own}
        last = ""
        while True:
            try:
                if last in ("submit", "poll") and not self._together:
                    self.sample_until(pipe.poll)
                last, arguments = receive(pipe)
            except (EOFError, OSError):
                return
            method = methods.get(last) or getattr(self._engine, last)
            _answer(pipe, lambda: method(*arguments))  # noqa: B023

    def submit(
        self, requests: Sequence[Request], media: Mapping[str, Medium]
    ) -> tuple[list[int], bool]:
        """See ``Engine``; with the tickets comes whether the engine is full."""
        self._media.update(media)
        try:
            tickets = self._engine.submit(requests)
        finally:
            self._media.clear()
        self._under_way += sum(len(request.seeds) for request in requests)
        return tickets, self._engine.is_full

    def poll(self, wait_s: float) -> tuple[list[Finished], bool]:
        """See ``Engine``; with what has finished comes whether the engine is full."""
        if self._failure is not None:
            raise self._failure
        ended, self._ended = self._ended, []
        if self._under_way and not ended:
            ended = self._engine.poll(wait_s)
            self._under_way -= len(ended)
        return ended, self._engine.is_full

    def sample_until(self, called: Callable[[], bool]) -> None:
        """Sample on, and keep what has finished for the next ``poll``."""
        while self._under_way and self._failure is None and not called():
            try:
                ended = self._engine.poll()
            except Exception as error:  # an answer to the next poll
                self._failure = error
                return
            self._ended += ended
            self._under_way -= len(ended)

    def cancel(self) -> int:
        """See ``Engine``."""
        lost = sum(len(ended.completion.token_ids) for ended in self._ended)
        self._under_way, self._ended, self._failure = 0, [], None
        return lost + self._engine.cancel()

    def share_weights(self, shared: SharedWeights) -> None:
        """Map the memory that weights are written into."""
        self._shared = shared.tensors()

    def load_shared_weights(self, version: int) -> None:
        """Load what is in that memory."""
        self._engine.load(self._shared, version)


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
