"""Files that appear under their names whole or not at all, whatever ends the process."""

from __future__ import annotations

import errno
import hashlib
import io
import os
import secrets
import shutil
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, BinaryIO

DRAFT = ".tmp"
OPEN_MODE = 0o666
"""Readable and writable for all; the umask takes from it."""


@contextmanager
def atomic(path: Path, mode: int = OPEN_MODE) -> Iterator[IO[str]]:
    """A UTF-8 text file that appears under its name only when the block ends without an error.

    It is on the disk by then. An error, a signal or a full disk leaves the file that was there
    before, and nothing beside it.

    Args:
        path: The file; its folder is made if need be.
        mode: Its permissions, less the umask.
    """
    with atomic_binary(path, mode=mode) as (file,):
        text = io.TextIOWrapper(file, encoding="utf-8", newline="\n")
        yield text
        text.flush()
        text.detach()


@contextmanager
def atomic_binary(
    *paths: Path, mode: int = OPEN_MODE, sync: bool = True
) -> Iterator[tuple[BinaryIO, ...]]:
    """Files of bytes that appear together when the block ends without an error.

    Args:
        paths: The files. All are on the disk before the first appears.
        mode: Their permissions, less the umask.
        sync: False for the many files of a dataset's conversion, which a crash of the machine may
            cost. A crash of the process may not, in either case.
    """
    with ExitStack() as stack:
        drafts = [stack.enter_context(_draft(path, mode)) for path in paths]
        yield tuple(draft.file for draft in drafts)
        for draft in drafts:
            draft.file.flush()
            if sync:
                os.fsync(draft.file.fileno())
        for draft in drafts:
            draft.publish()
        if sync:
            for folder in {path.parent for path in paths}:
                _sync_folder(folder)


@dataclass
class _Draft:
    """A file that is being written: without a name where the file system can do that.

    Such a file is gone when the process is, so that even SIGKILL leaves nothing behind.
    """

    path: Path
    file: BinaryIO
    temporary: Path
    named: bool

    def publish(self) -> None:
        """Give the file its name."""
        if not self.named:  # a link replaces nothing, a rename does: so both
            folder = os.open(self.path.parent, os.O_RDONLY)
            try:
                # The descriptor makes Python call linkat, which follows the link in /proc.
                source = f"/proc/self/fd/{self.file.fileno()}"
                os.link(source, self.temporary, src_dir_fd=folder)
            finally:
                os.close(folder)
            self.named = True
        self.temporary.replace(self.path)


@contextmanager
def _draft(path: Path, mode: int) -> Iterator[_Draft]:
    if not path.parent.is_dir():
        path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}{DRAFT}")
    descriptor = _unnamed(path.parent, mode)
    named = descriptor is None
    if descriptor is None:
        descriptor = os.open(temporary, os.O_RDWR | os.O_CREAT | os.O_EXCL, mode)
    with open(descriptor, "w+b") as file:  # noqa: PTH123 - a descriptor
        draft = _Draft(path, file, temporary, named)
        try:
            yield draft
        finally:
            if draft.named:
                temporary.unlink(missing_ok=True)  # on a full disk it would keep the disk full


def _unnamed(folder: Path, mode: int) -> int | None:
    """The descriptor of a file without a name in this folder; None where there is no such thing."""
    if not hasattr(os, "O_TMPFILE") or not Path("/proc/self/fd").is_dir():
        return None
    try:
        return os.open(folder, os.O_TMPFILE | os.O_RDWR, mode)
    except (IsADirectoryError, NotADirectoryError):
        return None  # a kernel that knows it not
    except OSError as error:
        if error.errno in (errno.EOPNOTSUPP, errno.EINVAL, errno.ENOSYS):
            return None
        raise


def append(path: Path, data: bytes) -> None:
    """Append all of ``data`` or nothing; makes the folder.

    Raises:
        OSError: If the file cannot be written; it is then as it was.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("ab", buffering=0) as file:
        end = file.seek(0, os.SEEK_END)
        rest = memoryview(data)
        try:
            while rest:
                rest = rest[file.write(rest) :]
        except BaseException:
            file.truncate(end)
            raise


def is_draft(path: Path) -> bool:
    """True if a kill may have left this file behind, on a file system without unnamed ones."""
    return path.name.startswith(".") and path.name.endswith(DRAFT)


@contextmanager
def atomic_folder(path: Path) -> Iterator[Path]:
    """A folder to fill, which gets its name when the block ends without an error.

    Args:
        path: New, or an empty folder. What an earlier, killed process began to fill is removed.
    """
    staging = path.with_name(f".{path.name}.making")
    shutil.rmtree(staging, ignore_errors=True)
    staging.mkdir(parents=True)
    try:
        yield staging
        if path.exists():
            path.rmdir()
        staging.replace(path)
        _sync_folder(path.parent)
    finally:
        shutil.rmtree(staging, ignore_errors=True)


def _sync_folder(folder: Path) -> None:
    """Write the names in a folder to the disk."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sha256_of(path: str | Path) -> bytes:
    """SHA-256 of a file. A small one is read in one call."""
    with open(path, "rb", buffering=0) as file:  # noqa: PTH123 - strings: for every medium
        if os.fstat(file.fileno()).st_size > _AT_ONCE:
            return hashlib.file_digest(file, "sha256").digest()
        return hashlib.sha256(file.readall()).digest()


_AT_ONCE = 1 << 20


def stamp(path: Path) -> tuple[int, ...]:
    """The size, time and inode of a file, which change with it."""
    facts = os.stat(str(path))  # noqa: PTH116 - once for every medium of every record
    return facts.st_size, facts.st_mtime_ns, facts.st_ino
