"""Media paths stay under their root."""

from __future__ import annotations

import os
import re
import stat
from functools import lru_cache
from pathlib import Path
from urllib.parse import unquote

_SCHEME = re.compile(r"^([a-zA-Z][a-zA-Z0-9+.-]+)://")


def local_name(name: str) -> str:
    """The path of a ``file://`` address, or the name itself.

    Raises:
        ValueError: The name is empty, or an address of another machine.
    """
    if not name or "\0" in name:
        raise ValueError("an empty media path" if not name else "a media path with a NUL byte")
    scheme = _SCHEME.match(name) if "://" in name else None
    if scheme is None:
        return name
    if scheme[1].lower() != "file":
        raise ValueError(
            f"remote media '{name}': download it first, or allow its host by name where the "
            "command offers that"
        )
    return unquote(name[scheme.end() :])


def resolve_media(root: Path, name: str) -> Path:
    """The existing file that a record means by ``name``, under ``root`` after symlinks.

    Raises:
        ValueError: It is outside the root, missing, or not a regular file.
    """
    path, regular = _confined(root, name)
    if not regular and not os.path.isfile(path):  # noqa: PTH113 - strings: for every medium
        what = "is not a regular file" if Path(path).exists() else "does not exist"
        raise ValueError(
            f"media file '{name}' {what} under {root}; restore it, or set the media root "
            "(data.media_root, --media-root) to the folder the paths are relative to"
        )
    return _as_path(path)


@lru_cache(maxsize=1 << 14)
def _as_path(path: str) -> Path:
    """A path, cached for records about one medium, as making it takes as long as the rest."""
    return Path(path)


def confine(root: Path, name: str) -> Path:
    """``root / name`` with symlinks resolved. Raises ValueError when that leaves the root."""
    return Path(_confined(root, name)[0])


def _confined(root: Path, name: str) -> tuple[str, bool]:
    """The path of :func:`confine`, and whether a regular file is there, if known by the way."""
    home = real_folder(str(root))
    try:
        path, regular = _real(os.path.join(home, local_name(name)))  # noqa: PTH118
    except (OSError, RuntimeError) as error:  # a loop of symlinks, a name too long
        raise ValueError(f"media path '{name[:200]}': {error}") from error
    if not f"{path}/".startswith(home if home == "/" else f"{home}/"):
        raise ValueError(
            f"media path '{name}' leads outside {home}; move the file under it, or set the media "
            "root (data.media_root, --media-root) to a folder that holds all media"
        )
    return path, regular


def real_path(path: str) -> str:
    """The path with symlinks resolved: those of its folder once per process."""
    return _real(path)[0]


def _real(path: str) -> tuple[str, bool]:
    folder, name = os.path.split(path)
    if name in ("", ".", ".."):
        return str(Path(path).resolve()), False
    path = os.path.join(real_folder(folder), name)  # noqa: PTH118
    try:
        mode = os.lstat(path).st_mode
    except (FileNotFoundError, NotADirectoryError):
        return path, False
    return (str(Path(path).resolve()), False) if stat.S_ISLNK(mode) else (path, stat.S_ISREG(mode))


def real_folder(folder: str) -> str:
    """A folder with symlinks resolved. Folders must not move while a process reads records."""
    # The working directory may change, so what is kept is about absolute paths.
    absolute = folder if os.path.isabs(folder) else str(Path(folder).absolute())  # noqa: PTH117
    return _real_absolute(absolute)


@lru_cache(maxsize=65536)
def _real_absolute(folder: str) -> str:
    return str(Path(folder).resolve())
