"""The walls around a worker, each raised and checked before it reads its first job.

An answer is text that the policy wrote and the verifier a large program, and a plugin is anybody's
code: so the worker takes away from itself what neither needs. What could not be raised is told to
the pool, which refuses to work without the walls that its promises rest on. What a worker may use
is here too: memory and files, a short environment, and the files that it may read.
"""

from __future__ import annotations

import ctypes
import importlib.util
import logging
import os
import pwd
import resource
import sys
import sysconfig
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from mmr1.lifetime import die_with
from mmr1.rewards.sandbox import landlock
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
    """Move this single-threaded process into an empty network namespace, if possible."""
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
    """The reason to run nothing behind these walls, or None when the required ones stand."""
    lacking = [f"{wall} ({missing[wall]})" for wall in REQUIRED if wall in missing]
    if not lacking:
        return None
    return (
        f"rewards cannot be isolated on this machine; it lacks: {', '.join(lacking)}. "
        "mmr1 doctor tries each wall. Run on Linux (x86-64 or arm64) with seccomp allowed, or set "
        "scoring.allow_weak_sandbox=true to run answers and plugins without these walls"
    )


@cache
def warn_of_missing_walls(line: str) -> None:
    """Warn once per process about missing walls."""
    logging.getLogger("mmr1.rewards").warning(line)


def missing_walls(missing: Mapping[str, str]) -> str | None:
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


GIB = 1 << 30


@dataclass(frozen=True, slots=True)
class Limits:
    """The limits of one worker.

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


_KEPT = frozenset(
    ("LANG", "LANGUAGE", "LC_ALL", "LC_COLLATE", "LC_CTYPE", "LC_MESSAGES", "LC_MONETARY",
     "LC_NUMERIC", "LC_TIME", "TZ", "PATH", "HOME", "LD_LIBRARY_PATH", "VIRTUAL_ENV",
     "CONDA_PREFIX", "PYTHONHASHSEED", "PYTHONPATH", "PYTHONHOME", "PYTHONUSERBASE",
     "PYTHONNOUSERSITE", "PYTHONSAFEPATH", "PYTHONPLATLIBDIR", "PYTHONUTF8", "PYTHONIOENCODING",
     "PYTHONCOERCECLOCALE", "PYTHONDONTWRITEBYTECODE", "PYTHONPYCACHEPREFIX", "PYTHONOPTIMIZE",
     "PYTHONWARNINGS", "PYTHONMALLOC")
)  # fmt: skip
# Pure-Python integers can be interrupted by a kill like anything else, but gmpy2 aborts the whole
# process when it runs out of memory; and one BLAS thread is enough.
_FIXED = {
    "SYMPY_GROUND_TYPES": "python",
    "MPMATH_NOGMPY": "1",
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "CUDA_VISIBLE_DEVICES": "",
    # torch makes this folder when it is imported; one that is there need not be made.
    "TORCHINDUCTOR_CACHE_DIR": "/tmp",
}


def worker_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """The part of the trainer's environment that a worker gets, with fixed variables."""
    return {**{n: v for n, v in environment.items() if n in _KEPT}, **_FIXED}


# Shared libraries, time zones, locales and the certificates of authorities; what glibc and OpenBLAS
# ask about the processor; the worker's own /proc entry. /proc as a whole shows other processes.
_SYSTEM = (
    "/usr",
    "/lib",
    "/lib64",
    "/nix/store",
    "/etc/ld.so.cache",
    "/etc/localtime",
    "/etc/ssl/certs",
    "/etc/ssl/openssl.cnf",
    "/etc/pki/tls/certs",
    "/etc/pki/tls/openssl.cnf",
    "/etc/pki/ca-trust/extracted",
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


# Of a folder that Python is installed in. A virtual environment may lie in a project's own folder.
_OF_PREFIX = ("bin", "lib", "lib64", "include", "share", "ssl", "pyvenv.cfg")
_PACKAGES = ("site-packages", "dist-packages")
# Also what an installed package says of itself: its entry points name reward functions and tools.
_MODULES = (".py", ".pyc", ".so", ".pth", ".zip", ".egg", ".dist-info", ".egg-info")


def python_paths() -> list[str]:
    """The paths that any worker reads, found in the worker, whose ``sys.path`` is the trainer's.

    Of a folder with a slash at its end, the names alone.
    """
    prefixes = {sys.prefix, sys.base_prefix, sys.exec_prefix, sys.base_exec_prefix}
    installed = [f"{prefix}/{part}" for prefix in sorted(prefixes) for part in _OF_PREFIX]
    schemes = sysconfig.get_paths()
    own_package = str(Path(__file__).parents[2])
    libraries = os.environ.get("LD_LIBRARY_PATH", "").split(":")
    return [
        *_SYSTEM,
        *installed,
        *(schemes[name] for name in ("stdlib", "platstdlib", "purelib", "platlib")),
        own_package,
        *(path for entry in sys.path for path in _modules_in(entry)),
        *(path for folder in libraries for path in _shared_objects_in(folder)),
    ]


def plugin_paths(spec: str, readable: Iterable[str]) -> tuple[str, ...]:
    """The further paths of a plugin: its package, or what is not hidden in its file's folder.

    The configuration may name more. A file that lies in the home folder itself does not open the
    home folder: keys lie there. Of a folder with a slash at its end, the names alone.
    """
    file = spec.rpartition(":")[0]
    named = [str(Path(path).expanduser().absolute()) for path in readable]
    if not file.endswith((".py", ".yaml", ".yml")):
        return (*_package(spec), *named)
    path = Path(file).expanduser().absolute()
    beside = [str(path)] if _holds_home(str(path.parent)) else _shown(path.parent)
    return (*beside, *named)


def _shown(folder: Path) -> list[str]:
    """A folder that hides nothing, or its visible entries: ``.env`` and ``.git`` stay closed."""
    try:
        names = os.listdir(folder)  # noqa: PTH208 - strings: it may hold many pictures
    except OSError:
        return [str(folder)]
    if not any(name.startswith(".") for name in names):
        return [str(folder)]
    return [f"{folder}/", *(f"{folder}/{name}" for name in names if not name.startswith("."))]


def _package(spec: str) -> list[str]:
    """The folders of the package that a dotted path begins with: it may have no ``__init__.py``."""
    name = spec.partition(":")[0].partition(".")[0]
    with suppress(ImportError, ValueError):
        found = importlib.util.find_spec(name) if name.isidentifier() else None
        folders = (found.submodule_search_locations or []) if found else []
        return [str(folder) for folder in folders if not _holds_home(str(folder))]
    return []


def _modules_in(entry: str) -> Iterator[str]:
    """The importable modules in an entry of ``sys.path``, which may be a project's folder."""
    if not entry or _holds_home(entry):
        return
    entry = entry.rstrip("/")
    if Path(entry).name in _PACKAGES or not Path(entry).is_dir():  # an archive
        yield entry
        return
    yield f"{entry}/"  # Python looks for modules there
    with suppress(OSError), os.scandir(entry) as found:
        for child in found:
            if child.name.startswith("."):
                continue
            is_package = child.is_dir() and os.path.isfile(f"{child.path}/__init__.py")  # noqa: PTH113
            if is_package or child.name.endswith(_MODULES) or child.name == "__pycache__":
                yield child.path


def _shared_objects_in(folder: str) -> Iterator[str]:
    with suppress(OSError), os.scandir(folder or "/nonexistent") as found:
        yield from (child.path for child in found if ".so" in child.name)


def _holds_home(path: str) -> bool:
    """True for the home folder, or one that contains it."""
    return any(home.is_relative_to(Path(path).resolve()) for home in _homes())


def _homes() -> list[Path]:
    """The home folder as the environment and as the system's list of users has it."""
    homes = [os.environ["HOME"]] if os.environ.get("HOME") else []
    with suppress(KeyError, OSError):
        homes.append(pwd.getpwuid(os.getuid()).pw_dir)
    return [Path(home).resolve() for home in homes]
