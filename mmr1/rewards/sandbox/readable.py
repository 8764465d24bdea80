"""Which files a worker needs: Python, its packages, the system's libraries, and its own folder."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable
from pathlib import Path

# Shared libraries, time zones and locales; what glibc and OpenBLAS ask
# about the processor; the worker's own /proc entry. /proc as a whole shows other processes.
_SYSTEM = (
    "/usr",
    "/lib",
    "/lib64",
    "/nix/store",
    "/etc/ld.so.cache",
    "/etc/localtime",
    "/dev/null",
    "/dev/zero",
    "/dev/urandom",
    "/dev/random",
    "/proc/self",
    "/proc/cpuinfo",
    "/proc/meminfo",
    "/proc/stat",
    "/proc/filesystems",
    "/proc/sys/vm/overcommit_memory",
    "/sys/devices/system/cpu",
    "/sys/devices/system/node",
    "/sys/fs/cgroup",
)


def python_paths() -> list[str]:
    """What any worker reads, asked in the worker itself, whose ``sys.path`` is the trainer's."""
    libraries = os.environ.get("LD_LIBRARY_PATH", "").split(":")
    own_package = str(Path(__file__).parents[2])
    on_path = [path for path in (*sys.path, *libraries) if path and not _holds_home(path)]
    return [*_SYSTEM, sys.prefix, sys.base_prefix, sys.exec_prefix, own_package, *on_path]


def plugin_paths(spec: str, readable: Iterable[str]) -> tuple[str, ...]:
    """What a plugin reads besides: the folder of its file, and what the configuration names.

    A file that lies in the home folder itself does not open the home folder: keys lie there.
    """
    file = spec.rpartition(":")[0]
    named = [str(Path(path).expanduser().absolute()) for path in readable]
    if not file.endswith((".py", ".yaml", ".yml")):
        return tuple(named)
    path = Path(file).expanduser().absolute()
    return (str(path if _holds_home(str(path.parent)) else path.parent), *named)


def _holds_home(path: str) -> bool:
    """Is this the home folder, or one that it lies in?"""
    home = Path(os.environ.get("HOME") or "/").resolve()
    return home.is_relative_to(Path(path).resolve())
