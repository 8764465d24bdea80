"""The walls around a worker, each raised and checked before it reads its first job.

An answer is text that the policy wrote and the verifier a large program, and a plugin is anybody's
code: so the worker takes away from itself what neither needs. What could not be raised is told to
the pool, which refuses to work without the walls that its promises rest on.
"""

from __future__ import annotations

import ctypes
import logging
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import cache

from mmr1.lifetime import die_with
from mmr1.rewards.sandbox import landlock
from mmr1.rewards.sandbox.limits import Limits, set_limits
from mmr1.rewards.sandbox.seccomp import filter_system_calls

# Without them code in a worker could write, connect, start programs, fill the memory or outlive
# the run. The other two stand behind them: the filter alone lets no socket be made, and where
# Landlock is absent a worker can read what the user can.
NETWORK, LANDLOCK = "network namespace", "Landlock"
LIMITS, DEATH_SIGNAL, NO_NEW_PRIVS = "resource limits", "death signal", "no_new_privs"
SECCOMP = "seccomp"
WALLS = (NETWORK, SECCOMP, LIMITS, NO_NEW_PRIVS, DEATH_SIGNAL, LANDLOCK)
REQUIRED = (SECCOMP, LIMITS, NO_NEW_PRIVS, DEATH_SIGNAL)

_CLONE_NEWNET, _CLONE_NEWUSER = 0x40000000, 0x10000000  # unshare(2)
_PR_GET_PDEATHSIG, _PR_SET_NO_NEW_PRIVS, _PR_GET_NO_NEW_PRIVS = 2, 38, 39  # prctl(2)
_SIGKILL = 9

Missing = dict[str, str]
"""The walls that could not be raised, and why."""


def drop_network() -> Missing:
    """Move this single-threaded process into an empty network namespace, if the system lets it."""
    return _try(NETWORK, _unshare_network)


def raise_walls(limits: Limits, readable: Sequence[str], parent: int) -> Missing:
    """Raise every wall but the network's around this process, the system call filter last.

    Args:
        limits: Memory and file limits.
        readable: Files and folders that may be opened, for reading.
        parent: Process id whose death must end this process; if it is already gone, exit.
    """
    return {
        **_try(DEATH_SIGNAL, lambda: _die_with(parent)),
        **_try(NO_NEW_PRIVS, _set_no_new_privs),
        **_try(LANDLOCK, lambda: landlock.restrict(readable)),
        **_try(LIMITS, lambda: set_limits(limits)),  # they may forbid to open what Landlock opens
        **_try(SECCOMP, lambda: filter_system_calls(limits.threads)),
    }


def refusal(missing: Mapping[str, str]) -> str | None:
    """Why nothing may run behind these walls, or None when the required ones stand."""
    lacking = [f"{wall} ({missing[wall]})" for wall in REQUIRED if wall in missing]
    if not lacking:
        return None
    return (
        f"rewards cannot be isolated on this machine; it lacks: {', '.join(lacking)}. "
        "mmr1 doctor tries each wall. Run on Linux (x86-64 or arm64) with seccomp allowed, or set "
        "rewards.allow_weak_sandbox=true to run answers and plugins without these walls"
    )


@cache
def warn_of(line: str) -> None:
    """Say once in a process which walls are missing."""
    logging.getLogger("mmr1.rewards").warning(line)


def shortcoming(missing: Mapping[str, str]) -> str | None:
    """One line on every wall that is missing, required or not; None when all stand."""
    if not missing:
        return None
    walls = ", ".join(f"{wall} ({missing[wall]})" for wall in WALLS if wall in missing)
    return f"the sandbox of the rewards lacks: {walls}; mmr1 doctor says what that means"


def _try(wall: str, raise_wall: Callable[[], None]) -> Missing:
    try:
        raise_wall()
    except (OSError, ValueError, AttributeError) as error:  # AttributeError: no such call in libc
        return {wall: str(error)}
    return {}


def _unshare_network() -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    # Root may; anybody else may in a user namespace of its own, where those are allowed.
    if not any(libc.unshare(f) == 0 for f in (_CLONE_NEWNET, _CLONE_NEWUSER | _CLONE_NEWNET)):
        raise OSError(ctypes.get_errno(), f"unshare: {os.strerror(ctypes.get_errno())}")


def _die_with(parent: int) -> None:
    if not sys.platform.startswith("linux"):
        raise OSError("only Linux has one")
    die_with(parent)
    signal = ctypes.c_int(0)
    ctypes.CDLL(None).prctl(_PR_GET_PDEATHSIG, ctypes.byref(signal), 0, 0, 0)
    if signal.value != _SIGKILL:
        raise OSError("prctl(PR_SET_PDEATHSIG) has no effect")


def _set_no_new_privs() -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    if libc.prctl(_PR_GET_NO_NEW_PRIVS, 0, 0, 0, 0) != 1:
        raise OSError("prctl(PR_SET_NO_NEW_PRIVS) has no effect")
