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
        ValueError: If the file is outside the root, missing, not a regular file, or too large.
    """
    path, size = _confined(root, name)
    if size is None and os.path.isfile(path):  # noqa: PTH113 - strings: for every medium
        size = os.path.getsize(path)  # noqa: PTH202
    if size is None:
        what = "is not a regular file" if Path(path).exists() else "does not exist"
        raise ValueError(
            f"media file '{name}' {what} under {root}; restore it, or set the media root "
            "(data.media_root, --media-root) to the folder the paths are relative to"
        )
    if size > SUSPECT_BYTES:
        check_bytes(path, size)
    return _as_path(path)


MAX_BYTES = 16 << 30
"""Bytes of the largest file: a film of two hours in 4K."""
SUSPECT_BYTES = 64 << 20
"""Bytes from which a file is looked at for holes."""


def check_bytes(path: str, size: int) -> None:
    """Refuse a file that is too large, or is for the most part a hole, as of a broken download.

    Raises:
        ValueError: If the file is either.
    """
    if size > MAX_BYTES:
        raise ValueError(
            f"{path} has {size / 1e9:.1f} GB, more than {MAX_BYTES / 1e9:.1f} GB; cut it into parts"
        )
    file = os.open(path, os.O_RDONLY)
    try:
        hole = os.lseek(file, 0, os.SEEK_HOLE)
        after = os.lseek(file, hole, os.SEEK_DATA) if hole < size else size
    except OSError:  # nothing but the hole follows, or the disk knows of none
        after = size
    finally:
        os.close(file)
    if 2 * (after - hole) > size:
        raise ValueError(
            f"{path} has {size / 1e9:.1f} GB, of which most were never written; download it again"
        )


@lru_cache(maxsize=1 << 14)
def _as_path(path: str) -> Path:
    """A path, cached for records about one medium, as making it takes as long as the rest."""
    return Path(path)


def confine(root: Path, name: str) -> Path:
    """``root / name`` with symlinks resolved. Raises ValueError when that leaves the root."""
    return Path(_confined(root, name)[0])


def _confined(root: Path, name: str) -> tuple[str, int | None]:
    """The path of :func:`confine`, and the bytes of a regular file there, if known by the way."""
    home = real_folder(str(root))
    try:
        path, size = _real(os.path.join(home, local_name(name)))  # noqa: PTH118
    except (OSError, RuntimeError) as error:  # a loop of symlinks, a name too long
        raise ValueError(f"media path '{name[:200]}': {error}") from error
    if not f"{path}/".startswith(home if home == "/" else f"{home}/"):
        raise ValueError(
            f"media path '{name}' leads outside {home}; move the file under it, or set the media "
            "root (data.media_root, --media-root) to a folder that holds all media"
        )
    return path, size


def real_path(path: str) -> str:
    """The path with symlinks resolved: those of its folder once per process."""
    return _real(path)[0]


def _real(path: str) -> tuple[str, int | None]:
    folder, name = os.path.split(path)
    if name in ("", ".", ".."):
        return str(Path(path).resolve()), None
    path = os.path.join(real_folder(folder), name)  # noqa: PTH118
    try:
        facts = os.lstat(path)
    except (FileNotFoundError, NotADirectoryError):
        return path, None
    if stat.S_ISLNK(facts.st_mode):
        return str(Path(path).resolve()), None
    return path, facts.st_size if stat.S_ISREG(facts.st_mode) else None


def real_folder(folder: str) -> str:
    """A folder with symlinks resolved. Folders must not move while a process reads records."""
    # The working directory may change, so what is kept is about absolute paths.
    absolute = folder if os.path.isabs(folder) else str(Path(folder).absolute())  # noqa: PTH117
    return _real_absolute(absolute)


@lru_cache(maxsize=65536)
def _real_absolute(folder: str) -> str:
    return str(Path(folder).resolve())
