"""A disk that can be full."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest


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
