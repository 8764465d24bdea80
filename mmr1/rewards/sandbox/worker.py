"""The loop of one worker: walls up, then a job in and its answer out, until it is killed.

A plugin is imported here, as the first job, so that its import is behind the walls too.
"""

from __future__ import annotations

import builtins
import importlib
import json
import os
import pickle
import socket
import sys
import tempfile
from collections.abc import Callable, Sequence
from typing import Any

from mmr1.lifetime import die_with
from mmr1.rewards.item import as_reward, reward_of_exception
from mmr1.rewards.sandbox.walls import Limits, Missing, python_paths, raise_walls, refusal
from mmr1.rewards.sandbox.wire import LENGTH, VALUE, pack_answer, reward_rows
from mmr1.types import Reward


def work(
    channel: socket.socket,
    limits: Limits,
    readable: Sequence[str],
    missing: Missing,
    parent: int,
    *,
    allow_weak: bool,
    lambdify: bool,
    walls: bool,
) -> None:
    """Raise the walls, report which are missing, and serve jobs on this channel.

    Args:
        channel: Channel to the pool.
        limits: Memory and file limits.
        readable: Files and folders that may be read besides Python's own.
        missing: Walls that the parent process could not raise.
        parent: Process whose death ends this one.
        allow_weak: Go on without a wall that is required.
        lambdify: Leave sympy's ``lambdify`` as it is.
        walls: Raise them; without, no more is done than to die with the parent.
    """
    if walls and not lambdify:
        disable_lambdify()
    if walls:
        provide_stand_ins()
    # The filter allows read and write only; a socket's own methods are other system calls.
    reader = os.fdopen(channel.fileno(), "rb")
    writer = os.fdopen(channel.detach(), "wb", closefd=False)
    close_other_descriptors(reader.fileno())
    if walls:
        paths = [*python_paths(), *readable]
        missing = {**missing, **raise_walls(limits, paths, parent)}
    else:
        die_with(parent)
    _send(writer, json.dumps(missing).encode())
    if refusal(missing) and not allow_weak:
        return
    while True:
        size = reader.read(LENGTH.size)
        if len(size) < LENGTH.size:
            return  # the pool hung up
        number, kind, target, args = pickle.loads(reader.read(LENGTH.unpack(size)[0]))
        answer = (_value if kind == VALUE else _rewards)(target, args)
        _send(writer, pack_answer(number, answer))


def close_other_descriptors(kept: int) -> None:
    """Leave standard input, output and error, which are /dev/null, and this one."""
    os.closerange(3, kept)
    os.closerange(kept + 1, os.sysconf("SC_OPEN_MAX"))


def _send(writer: Any, body: bytes) -> None:
    writer.write(LENGTH.pack(len(body)) + body)
    writer.flush()


def _rewards(target: str, args: tuple[Any, ...]) -> list[Any]:
    try:
        return reward_rows(run_job(target, args))
    except BaseException as error:  # SystemExit and KeyboardInterrupt of a plugin too
        return reward_rows([reward_of_exception(error)])


def _value(target: str, args: tuple[Any, ...]) -> dict[str, Any]:
    """``{"value": ...}``, or ``{"error": ...}`` in one line."""
    try:
        return {"value": call_target(target, args)}
    except BaseException as error:
        return {"error": error_line(error)}


def error_line(error: BaseException) -> str:
    """The message of a failed preparation; a ValueError of ours needs no type in front."""
    name = "" if type(error) is ValueError else f"{type(error).__name__}: "
    return f"{name}{error}" or "it failed"


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
    """Replace sympy's ``lambdify`` everywhere, as it turns symbol names into source code.

    Some modules of sympy hold their own reference to it, and ``evalf`` of a polynomial root
    reaches it.
    """
    for name, module in list(sys.modules.items()):
        if name.partition(".")[0] == "sympy" and "lambdify" in vars(module):
            module.lambdify = _refuse_lambdify  # type: ignore[attr-defined]


_STANDARD_OUTPUT = 1  # the null device, in a worker


def provide_stand_ins() -> None:
    """Lend copies of standard output as the null device, and name a folder for temporary files.

    Libraries open them for writing when they are imported, where no file can be opened for writing:
    dill tries every mode of ``open`` on the null device and asks for the folder of temporary files,
    which Python finds by writing into it; torch imports dill where it is installed. Without these
    stand-ins a plugin could not import torch. The filter cannot see a path, so it cannot make an
    exception for the null device.

    No program can be started, so none is found either: ``ctypes.util.find_library``, which CUDA's
    packages call when they are imported, would find gcc and fail at its temporary file, and
    returns None without one.
    """
    open_file, open_descriptor = builtins.open, os.open

    def lending_open(file: Any, *args: Any, **keywords: Any) -> Any:
        if file == os.devnull:
            file = os.dup(_STANDARD_OUTPUT)
        return open_file(file, *args, **keywords)

    def lending_descriptor(path: Any, *args: Any, **keywords: Any) -> int:
        if path == os.devnull:
            return os.dup(_STANDARD_OUTPUT)
        return open_descriptor(path, *args, **keywords)

    builtins.open = lending_open
    os.open = lending_descriptor
    tempfile.tempdir = "/tmp"  # nothing can be written into it either
    os.environ["PATH"] = ""
