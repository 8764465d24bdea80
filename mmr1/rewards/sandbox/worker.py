"""The loop of one worker: a job in, its rewards out, until it is killed."""

from __future__ import annotations

import importlib
import os
import pickle
import socket
import sys
from collections.abc import Callable, Sequence
from typing import Any

from mmr1.rewards.item import as_reward, reward_of_exception
from mmr1.rewards.sandbox.limits import Limits, contain
from mmr1.rewards.sandbox.wire import LENGTH, pack_rewards
from mmr1.types import Reward


def work(channel: socket.socket, limits: Limits, parent: int) -> None:
    """Serve jobs on this channel in a contained process."""
    disable_lambdify()
    # The filter allows read and write only; a socket's own methods are other system calls.
    reader = os.fdopen(channel.fileno(), "rb")
    writer = os.fdopen(channel.detach(), "wb", closefd=False)
    contain(limits, parent)
    while True:
        size = reader.read(LENGTH.size)
        if len(size) < LENGTH.size:
            return  # the pool hung up
        results = pack_rewards(_run(reader.read(LENGTH.unpack(size)[0])))
        writer.write(LENGTH.pack(len(results)) + results)
        writer.flush()


def _run(body: bytes) -> list[Reward]:
    try:
        target, args = pickle.loads(body)
        return run_job(target, args)
    except BaseException as error:  # SystemExit and KeyboardInterrupt of a plugin too
        return [reward_of_exception(error)]


def call_target(target: str, args: Sequence[Any]) -> Any:
    """Import ``module:function`` and call it."""
    module, _, name = target.partition(":")
    return getattr(importlib.import_module(module), name)(*args)


def run_job(target: str, args: tuple[Any, ...]) -> list[Reward]:
    """Call ``module:function`` with these arguments; a list is one reward per element."""
    value = call_target(target, args)
    return [as_reward(v) for v in value] if isinstance(value, list) else [as_reward(value)]


def _refuse_lambdify(*args: Any, **kwargs: Any) -> Callable[..., Any]:
    raise PermissionError("lambdify compiles text and is disabled in the verifier")


def disable_lambdify() -> None:
    """Replace sympy's ``lambdify``, which turns symbol names into source code, wherever it is.

    Some modules of sympy hold their own reference to it, and ``evalf`` of a polynomial root
    reaches it.
    """
    for name, module in list(sys.modules.items()):
        if name.partition(".")[0] == "sympy" and "lambdify" in vars(module):
            module.lambdify = _refuse_lambdify  # type: ignore[attr-defined]
