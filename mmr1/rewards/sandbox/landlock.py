"""Landlock, landlock(7): the files that a worker may read.

Files outside the list cannot be opened, other processes of the user cannot be looked into (ptrace,
/proc/PID/environ, /proc/PID/mem), and from ABI 4 and 6 of Landlock on TCP and signals end at the
worker's own walls too.
"""

from __future__ import annotations

import ctypes
import os
import struct
from collections.abc import Sequence

# The same numbers on every architecture.
_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446
_VERSION, _PATH_BENEATH = 1, 1
# linux/landlock.h: LANDLOCK_ACCESS_FS_*; nothing needs EXECUTE, for no program is started.
_READ_FILE, _READ_DIR = 1 << 2, 1 << 3
_FILE_RIGHTS = {1: 13, 2: 14, 3: 15, 4: 15}  # how many there are in an ABI; 16 from 5 on
_BIND_AND_CONNECT_TCP = 0b11
_ABSTRACT_SOCKETS_AND_SIGNALS = 0b11


def abi() -> int:
    """The version of Landlock that the kernel speaks.

    Raises:
        OSError: If the kernel has no Landlock, or Landlock is not among its security modules.
    """
    return _call(_CREATE_RULESET, None, 0, _VERSION)


def restrict(readable: Sequence[str]) -> None:
    """Restrict this process, for good, to reading these files and folders.

    Paths that are not there, or that this user cannot reach, are passed over. Of a folder with a
    slash at its end, the names can be listed and no file opened.

    Raises:
        OSError: The kernel has no Landlock.
    """
    version = abi()
    ruleset = _new_ruleset(version)
    try:
        for path in readable:
            _allow_reading(ruleset, path)
        _call(_RESTRICT_SELF, ruleset, 0)
    finally:
        os.close(ruleset)


def _new_ruleset(version: int) -> int:
    """A ruleset; what it handles is refused unless a rule allows it."""
    attributes = struct.pack("Q", (1 << _FILE_RIGHTS.get(version, 16)) - 1)
    if version >= 4:
        attributes += struct.pack("Q", _BIND_AND_CONNECT_TCP)
    if version >= 6:
        attributes += struct.pack("Q", _ABSTRACT_SOCKETS_AND_SIGNALS)
    return _call(_CREATE_RULESET, attributes, len(attributes), 0)


def _allow_reading(ruleset: int, path: str) -> None:
    try:
        descriptor = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except OSError:
        return
    try:
        rights = 0 if path.endswith("/") else _READ_FILE
        rights |= _READ_DIR if os.path.isdir(path) else 0  # noqa: PTH112
        _call(_ADD_RULE, ruleset, _PATH_BENEATH, struct.pack("=Qi", rights, descriptor), 0)
    finally:
        os.close(descriptor)


def _call(number: int, *arguments: bytes | int | None) -> int:
    libc = ctypes.CDLL(None, use_errno=True)
    libc.syscall.restype = ctypes.c_long
    passed = [ctypes.c_long(a) if isinstance(a, int) else a for a in arguments]
    result = int(libc.syscall(ctypes.c_long(number), *passed))
    if result < 0:
        raise OSError(ctypes.get_errno(), f"Landlock: {os.strerror(ctypes.get_errno())}")
    return result
