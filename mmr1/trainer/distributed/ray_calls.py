"""Calls to Ray actors by function, and their results, with errors that a user can read.

A method is passed as a function, such as ``Rank.build``: mypy checks its name, its arguments and
its result as it does for a call in one process.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Concatenate, Generic, ParamSpec, TypeVar

from mmr1.trainer.distributed.errors import WorkerLostError

Owner = TypeVar("Owner")
Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")


@dataclass(frozen=True, slots=True)
class Call(Generic[Result]):
    """A call under way in another process.

    Attributes:
        ref: Ray's reference to the result.
    """

    ref: Any


@dataclass(frozen=True, slots=True)
class Actor(Generic[Owner]):
    """An object in another process.

    Attributes:
        handle: Ray's.
        group: The concurrency group that its calls run in; None for the actor's main thread.
    """

    handle: Any
    group: str | None = None

    def start(
        self,
        method: Callable[Concatenate[Owner, Arguments], Result],
        *args: Arguments.args,
        **options: Arguments.kwargs,
    ) -> Call[Result]:
        """Call a method; does not wait for it."""
        remote = getattr(self.handle, method.__name__)
        if self.group is not None:
            remote = remote.options(concurrency_group=self.group)
        return Call(remote.remote(*args, **options))

    def ready(self) -> Call[Any]:
        """A call that ends when the actor has started."""
        return Call(self.handle.__ray_ready__.remote())

    def within(self, group: str) -> Actor[Owner]:
        """A handle of the same object whose calls run in a concurrency group."""
        return replace(self, group=group)


@dataclass(frozen=True, slots=True)
class Watch:
    """Checks workers while their results are awaited.

    Attributes:
        every_s: Seconds without any result after which it looks, again and again.
        look: Gets the indices of pending calls; raises an error if waiting is useless.
    """

    every_s: float
    look: Callable[[Sequence[int]], None]


def get(
    calls: Sequence[Call[Result]], timeout_s: float | None = None, watch: Watch | None = None
) -> list[Result]:
    """The results in order. The first failure is raised at once, as the worker raised it.

    Args:
        timeout_s: Longest time to wait for all of them together; None for any.
        watch: Checks workers that do not answer.

    Raises:
        WorkerLostError: A worker died, or has not answered in time.
    """
    results, lost = outcomes(dict(enumerate(calls)), timeout_s, wait_for_all=False, watch=watch)
    for why in lost.values():
        raise WorkerLostError(
            f"a rank or an engine died or is stuck ({why}); --resume continues from the last "
            "checkpoint"
        )
    return [results[i] for i in range(len(calls))]


def outcomes(
    calls: Mapping[int, Call[Result]],
    timeout_s: float | None,
    wait_for_all: bool = True,
    only_first: bool = False,
    watch: Watch | None = None,
    limit: str | None = None,
) -> tuple[dict[int, Result], dict[int, str]]:
    """Results by key, and the errors of workers that died or did not answer in time, by key.

    A failure that a worker raised is raised here, at once.

    Args:
        timeout_s: Longest time to wait for all of them together; None for any.
        wait_for_all: Whether to wait for the others where a worker is lost.
        only_first: Wait for one result; the other calls continue.
        watch: Checks workers that do not answer, if there is no longest time.
        limit: The key that sets the longest time, for the message.
    """
    import ray

    assert timeout_s is None or watch is None
    key_of = {call.ref: key for key, call in calls.items()}
    results: dict[int, Result] = {}
    lost: dict[int, str] = {}
    errors = ray.exceptions
    gone = (
        errors.RayActorError,
        errors.ActorUnschedulableError,
        errors.OutOfMemoryError,  # Ray ends a worker when its machine runs out of memory
        errors.ObjectLostError,
    )
    deadline = None if timeout_s is None else time.monotonic() + timeout_s
    pending = list(key_of)
    while pending and (wait_for_all or not lost) and not (only_first and (results or lost)):
        left = None if deadline is None else max(0.0, deadline - time.monotonic())
        left = watch.every_s if watch else left
        finished, pending = ray.wait(pending, timeout=left)
        if not finished and watch:
            watch.look([key_of[call] for call in pending])
        elif not finished:
            late = f"no answer for {timeout_s:g} s" + (f", which is {limit}" if limit else "")
            return results, lost | {key_of[call]: late for call in pending}
        for call in finished:
            try:
                results[key_of[call]] = ray.get(call)
            except errors.RayTaskError as error:
                raise _as_raised(error) from None
            except gone as error:
                lost[key_of[call]] = _in_short(error)
    return results, lost


def _as_raised(error: Any) -> BaseException:
    """A user's error and our own without Ray's wrapping; others keep the worker's traceback."""
    cause = error.cause
    for_the_user = isinstance(cause, ValueError) or type(cause).__module__.startswith("mmr1.")
    return cause if for_the_user else error


def _in_short(error: Exception) -> str:
    """Ray's message without its advice, on one line."""
    return " ".join(str(error).partition("Some common causes")[0].split())
