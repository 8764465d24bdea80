"""A judge's replies: read from chat completions, kept on disk by request, and their verdicts."""

from __future__ import annotations

import hashlib
import json
import logging
import math
import re
import sqlite3
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from mmr1.logs import report_fault
from mmr1.rewards.builtin.judge import JudgeConfig


@dataclass(frozen=True, slots=True)
class Reply:
    """A server's answer.

    Attributes:
        text: The assistant's message.
        prompt_tokens: Tokens of its request, as the server counted; 0 where it does not say.
        completion_tokens: Likewise, of all its replies.
        cut: The reply ended at ``max_tokens``.
    """

    text: str
    prompt_tokens: int
    completion_tokens: int
    cut: bool


def read_chat_completion(answer: Any) -> Reply:
    """The first of :func:`read_chat_completions`."""
    return read_chat_completions(answer)[0]


def read_chat_completions(answer: Any) -> list[Reply]:
    """The replies in a server's JSON; one without content, as of cut reasoning, is empty.

    Raises:
        ValueError: If the answer is not a chat completion.
    """
    try:
        choices = [(c["message"]["content"], c.get("finish_reason")) for c in answer["choices"]]
    except (KeyError, AttributeError, TypeError):
        choices = []
    if not choices or not all(isinstance(text, str | None) for text, _ in choices):
        raise ValueError("its JSON is not a chat completion")
    usage = answer.get("usage") or {}
    tokens = _count(usage, "prompt_tokens"), _count(usage, "completion_tokens")
    return [Reply(text or "", *tokens, end == "length") for text, end in choices]


def _count(usage: Any, name: str) -> int:
    value = usage.get(name) if isinstance(usage, dict) else None
    return value if isinstance(value, int) and value >= 0 else 0


logger = logging.getLogger(__name__)

T = TypeVar("T")

_BUSY_S = 30.0


class ReplyCache:
    """A SQLite file that several processes may use at a time.

    A file that can no longer be read or written, because it is damaged or the disk is full, is left
    alone from then on: the judge is asked.

    Raises:
        ValueError: The file cannot be opened or is not a cache.
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
                "another in cache"
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
        """The result of a call, or None if the cache is gone."""
        if self._database is None:
            return None
        try:
            return use(self._database)
        except (sqlite3.Error, ValueError, TypeError) as error:
            self.close()
            told = f"the judge's cache {self._path} cannot be used any more: {error}"
            report_fault(logger, "judge/cache", f"{told}; the run continues without it")
            return None


def _key(body: bytes) -> str:
    return hashlib.sha256(body).hexdigest()


_DECODER = json.JSONDecoder()
_OBJECTS_TRIED = 100
_WINNERS = {"a": 1.0, "b": 0.0, "tie": 0.5, "c": 0.5}


def read_verdict(reply: str, options: JudgeConfig) -> float:
    """The reply's score from 0 to 1; in a comparison 1 where A is better, 0.5 for a tie.

    Raises:
        ValueError: The reply has no score, or one outside of the scale.
    """
    value = _by_regex(reply, options.score_regex) if options.score_regex else None
    if options.score_regex is None:
        value = _by_json(reply, options.key)
    if value is None:
        sought = f"'{options.key}' in JSON" if options.score_regex is None else "match"
        raise ValueError(f"the judge's reply has no {sought}: {reply.strip()[-120:]!r}")
    if options.against is not None:
        return _winner(value)
    return _scaled(value, *options.scale)


def _by_regex(reply: str, pattern: str) -> str | None:
    found = re.findall(pattern, reply)
    last = found[-1] if found else None
    return last[0] if isinstance(last, tuple) else last


def _by_json(reply: str, key: str) -> Any:
    """The key's value in the last JSON object that has it."""
    starts = [match.start() for match in re.finditer(r"\{", reply)][-_OBJECTS_TRIED:]
    for start in reversed(starts):
        try:
            found, _ = _DECODER.raw_decode(reply, start)
        except (ValueError, RecursionError):
            continue
        if key in found:
            return found[key]
    return None


def _winner(value: Any) -> float:
    name = str(value).strip().lower()
    if name not in _WINNERS:
        raise ValueError(f"the judge's verdict is {str(value)[:40]!r}; it must be A, B or tie")
    return _WINNERS[name]


def _scaled(value: Any, worst: float, best: float) -> float:
    try:
        number = float(value)
    except (TypeError, ValueError):
        raise ValueError(f"the judge's score is {str(value)[:40]!r}, not a number") from None
    if not math.isfinite(number) or not min(worst, best) <= number <= max(worst, best):
        raise ValueError(f"the judge's score {number:g} is outside of scale=[{worst:g}, {best:g}]")
    return (number - worst) / (best - worst)
