"""Ranks that are threads, and a disk that can be full."""

from __future__ import annotations

import shutil
import subprocess
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.testing._internal.distributed.multi_threaded_pg import (
    ProcessLocalGroup,
    _install_threaded_pg,
    _uninstall_threaded_pg,
)

from tests.trainer.resumption import LENGTH_REWARD


@pytest.fixture
def on_threads() -> Iterator[Callable[[int, Callable[[int], Any]], list[Any]]]:
    """``on_threads(size, work)`` gives ``work(rank)`` of each rank of a process group, in order.

    The ranks are threads of this process.
    """
    isolate = torch._C._distributed_c10d._set_thread_isolation_mode
    isolate(True)
    _install_threaded_pg()

    def run(size: int, work: Callable[[int], Any]) -> list[Any]:
        ProcessLocalGroup.reset()
        store, results, errors = dist.HashStore(), [None] * size, []

        def rank_work(rank: int) -> None:
            try:
                dist.init_process_group("threaded", rank=rank, world_size=size, store=store)
                results[rank] = work(rank)
            except BaseException as error:  # the other ranks would wait for this one
                errors.append(error)
                ProcessLocalGroup.exception_handle(error)

        threads = [threading.Thread(target=rank_work, args=(rank,)) for rank in range(size)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        if errors:
            raise errors[0]
        return results

    yield run
    _uninstall_threaded_pg()
    isolate(False)


@pytest.fixture
def small_disk(tmp_path) -> Iterator[Callable[[int], Path]]:
    """Mounts a real file system of so many KiB."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mounted = 0

    def mount(size_kib: int) -> Path:
        nonlocal mounted
        mount = ["mount", "-t", "tmpfs", "-o", f"size={size_kib}k", "tmpfs", str(folder)]
        if shutil.which("mount") is None or subprocess.run(mount, capture_output=True).returncode:
            pytest.skip("a file system can only be mounted by root")
        mounted += 1
        return folder

    yield mount
    for _ in range(mounted):
        subprocess.run(["umount", str(folder)], check=True)


@pytest.fixture
def reward(tmp_path: Path) -> Path:
    """The file of a reward by length, which an accident can be planned in."""
    path = tmp_path / "length.py"
    path.write_text(LENGTH_REWARD)
    (tmp_path / "accident").write_text("")
    return path
