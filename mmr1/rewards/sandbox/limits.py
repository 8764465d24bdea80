"""The resource limits of a worker."""

from __future__ import annotations

import resource
from dataclasses import dataclass

GIB = 1 << 30


@dataclass(frozen=True, slots=True)
class Limits:
    """What one worker may use.

    Attributes:
        memory: Bytes of address space.
        open_files: File descriptors; with 0 nothing can be opened, and what is open stays so.
        threads: May it start threads? They count for the process ids of the machine and the user.
    """

    memory: int = GIB
    open_files: int = 64
    threads: bool = True


def set_limits(limits: Limits) -> None:
    """Set and read back the limits of this process, getrlimit(2).

    Raises:
        OSError, ValueError: The system refuses one.
    """
    values = {
        resource.RLIMIT_CORE: 0,
        resource.RLIMIT_FSIZE: 0,  # a write that would make a file longer fails
        resource.RLIMIT_NOFILE: limits.open_files,
        resource.RLIMIT_AS: limits.memory,
    }
    for name, value in values.items():
        resource.setrlimit(name, (value, value))
        if resource.getrlimit(name) != (value, value):
            raise OSError(f"setrlimit({name}, {value}) has no effect")
