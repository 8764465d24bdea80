"""A disk that is full for a while: what cannot be written is kept, and written later."""

from __future__ import annotations

import errno
import logging
import os
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path

from mmr1.faults import tell_fault

logger = logging.getLogger(__name__)

RETRY_S = 1.0
"""Seconds between two attempts where nothing else is left to do."""
_ERRNOS = (errno.ENOSPC, errno.EDQUOT)


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


class Journal:
    """Writes in their order; those that a full disk refuses wait in memory for the next one.

    Args:
        patience_s: Seconds that the disk may be full.
    """

    def __init__(self, patience_s: float) -> None:
        self._patience_s = patience_s
        self._waiting: deque[Callable[[], None]] = deque()
        self._full_since: float | None = None

    def write(self, job: Callable[[], None]) -> None:
        """Run ``job``, which writes everything or raises OSError, after those that wait.

        Raises:
            OSError: The disk refuses for another reason, or has been full for ``patience_s``.
        """
        self._waiting.append(job)
        self._run()

    def finish(self) -> None:
        """Wait until everything is written.

        Raises:
            OSError: As ``write``.
        """
        self._run()
        while self._waiting:
            time.sleep(RETRY_S)
            self._run()

    def give_up(self) -> None:
        """Write what can be written; what cannot is lost."""
        try:
            self._run()
        except OSError as error:
            logger.info("the last metrics and rollouts are lost: %s", error)

    def _run(self) -> None:
        while self._waiting:
            try:
                self._waiting[0]()
            except OSError as error:
                self._wait(error)
                return
            self._waiting.popleft()
        if self._full_since is not None:
            self._full_since = None
            logger.info("the disk has space again: metrics and rollouts are complete")

    def _wait(self, error: OSError) -> None:
        """Put everything off, or raise the error."""
        if not is_full(error) or self._patience_s == 0:
            raise error
        now = time.monotonic()
        if self._full_since is None:
            self._full_since = now
            tell_fault(
                logger,
                "metrics/disk_full",
                f"{error}: metrics and rollouts are kept in memory until there is space again, "
                f"for {self._patience_s:g} s (trainer.disk_patience_s)",
            )
        if now - self._full_since >= self._patience_s:
            raise error
