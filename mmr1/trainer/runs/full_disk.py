"""A full disk: how it is recognized, and appends that it cannot cut off."""

from __future__ import annotations

import errno
import os
from pathlib import Path

_ERRNOS = (errno.ENOSPC, errno.EDQUOT)


class DiskFullError(RuntimeError):
    """The disk is full. The message names the last checkpoint."""


def is_full(error: BaseException | None) -> bool:
    """Is this the system's error of a full disk or quota, or one that was made of it?

    Libraries in Rust, and Ray, keep only its text.
    """
    while error is not None:
        texts = (os.strerror(number) for number in _ERRNOS)
        if getattr(error, "errno", None) in _ERRNOS or any(text in str(error) for text in texts):
            return True
        error = error.__cause__
    return False


def append(path: Path, data: bytes) -> None:
    """Append all of ``data`` or nothing; makes the folder.

    Raises:
        OSError: It cannot be written. The file is as it was.
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
