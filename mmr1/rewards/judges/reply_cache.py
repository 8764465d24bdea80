"""Replies of judges on disk, by the content of the request."""

from __future__ import annotations

import hashlib
import json
import logging
import sqlite3
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

from mmr1.faults import tell_fault
from mmr1.rewards.judges.reply import Reply

logger = logging.getLogger(__name__)

T = TypeVar("T")

_BUSY_S = 30.0


class ReplyCache:
    """A SQLite file that several processes may use at a time.

    A file that can no longer be read or written, because it is damaged or the disk is full, is left
    alone from then on: the judge is asked.

    Raises:
        ValueError: The file cannot be opened or is no such file.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._database: sqlite3.Connection | None = None
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            # Calls come one at a time, from the thread of the judge's event loop.
            self._database = sqlite3.connect(
                path, timeout=_BUSY_S, isolation_level=None, check_same_thread=False
            )
            self._database.execute("PRAGMA journal_mode=WAL")
            self._database.execute(
                "CREATE TABLE IF NOT EXISTS replies (request TEXT PRIMARY KEY, reply TEXT) STRICT"
            )
        except (sqlite3.Error, OSError) as error:
            self.close()
            raise ValueError(
                f"the judge's cache {path} cannot be used: {error}; delete the file, or name "
                "another in options.cache"
            ) from error

    def get(self, body: bytes) -> Reply | None:
        """The reply to an equal request."""

        def find(database: sqlite3.Connection) -> Reply | None:
            select = "SELECT reply FROM replies WHERE request = ?"
            found = database.execute(select, (_key(body),)).fetchone()
            return Reply(**json.loads(found[0])) if found else None

        return self._use(find)

    def put(self, body: bytes, reply: Reply) -> None:
        text = json.dumps({name: getattr(reply, name) for name in reply.__slots__})
        insert = "INSERT OR REPLACE INTO replies VALUES (?, ?)"
        self._use(lambda database: database.execute(insert, (_key(body), text)))

    def close(self) -> None:
        if self._database is not None:
            with suppress(sqlite3.Error):
                self._database.close()
            self._database = None

    def _use(self, use: Callable[[sqlite3.Connection], T]) -> T | None:
        """What this gives, or None where there is no cache any more."""
        if self._database is None:
            return None
        try:
            return use(self._database)
        except (sqlite3.Error, ValueError, TypeError) as error:
            self.close()
            told = f"the judge's cache {self._path} cannot be used any more: {error}"
            tell_fault(logger, "judge/cache", f"{told}; the run goes on without it")
            return None


def _key(body: bytes) -> str:
    return hashlib.sha256(body).hexdigest()
