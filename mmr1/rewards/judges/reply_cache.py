"""Replies of judges on disk, by the content of the request."""

from __future__ import annotations

import hashlib
import json
import sqlite3
from pathlib import Path

from mmr1.rewards.judges.reply import Reply

_BUSY_S = 30.0


class ReplyCache:
    """A SQLite file that several processes may use at a time.

    Raises:
        ValueError: The file cannot be opened or is no such file.
    """

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            # Calls come one at a time, from the thread of the judge's event loop.
            self._database = sqlite3.connect(
                path, timeout=_BUSY_S, isolation_level=None, check_same_thread=False
            )
            self._database.execute("PRAGMA journal_mode=WAL")
            self._database.execute(
                "CREATE TABLE IF NOT EXISTS replies (request TEXT PRIMARY KEY, reply TEXT) STRICT"
            )
        except sqlite3.Error as error:
            raise ValueError(f"the judge's cache {path} cannot be used: {error}") from error

    def get(self, body: bytes) -> Reply | None:
        """The reply to an equal request."""
        found = self._database.execute(
            "SELECT reply FROM replies WHERE request = ?", (_key(body),)
        ).fetchone()
        return Reply(**json.loads(found[0])) if found else None

    def put(self, body: bytes, reply: Reply) -> None:
        text = json.dumps({name: getattr(reply, name) for name in reply.__slots__})
        self._database.execute("INSERT OR REPLACE INTO replies VALUES (?, ?)", (_key(body), text))

    def close(self) -> None:
        self._database.close()


def _key(body: bytes) -> str:
    return hashlib.sha256(body).hexdigest()
