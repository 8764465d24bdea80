"""Which files a worker needs: Python, its packages, the system's libraries, and its own folder."""

from __future__ import annotations

import importlib.util
import os
import pwd
import sys
import sysconfig
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path

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
    """What any worker reads, asked in the worker itself, whose ``sys.path`` is the trainer's.

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
    """What a plugin reads besides: its package, or what is not hidden in the folder of its file.

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
    """A folder that hides nothing, or else what it shows: ``.env`` and ``.git`` stay closed."""
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
    """What Python can import from an entry of ``sys.path``, which may be a project's folder."""
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
    """Is this the home folder, or one that it lies in?"""
    return any(home.is_relative_to(Path(path).resolve()) for home in _homes())


def _homes() -> list[Path]:
    """The home folder as the environment and as the system's list of users has it."""
    homes = [os.environ["HOME"]] if os.environ.get("HOME") else []
    with suppress(KeyError, OSError):
        homes.append(pwd.getpwuid(os.getuid()).pw_dir)
    return [Path(home).resolve() for home in homes]
