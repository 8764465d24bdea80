"""The verdict in a judge's reply."""

from __future__ import annotations

import json
import math
import re
from typing import Any

from mmr1.rewards.judges.options import JudgeOptions

_DECODER = json.JSONDecoder()
_OBJECTS_TRIED = 100
_WINNERS = {"a": 1.0, "b": 0.0, "tie": 0.5, "c": 0.5}


def read_verdict(reply: str, options: JudgeOptions) -> float:
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
