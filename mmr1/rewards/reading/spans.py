"""Spans of time: seconds, minutes, clock times, subtitle stamps; never frames."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from functools import reduce
from typing import Any

from mmr1.rewards.reading.stance import Unread, conclusion, is_taken_back
from mmr1.rewards.reading.units import parse_unit
from mmr1.rewards.reading.vocabulary import rewriter
from mmr1.rewards.reading.words import with_digits

Span = tuple[float, float]

_UNIT = (
    r"(?:milliseconds?|msec|ms|毫秒|seconds?|secs?|s|秒钟?|minutes?|mins?|m|分钟?|hours?|hrs?|h|"
    r"个?小时)(?![A-Za-z])"
)
_NUMBER = r"(?:\d+(?:\.\d+)?|\.\d+)"
_MEASURE = re.compile(rf"(?i)({_NUMBER})\s*(?:-\s?)?({_UNIT}|[hm](?=\d))?")
_TIME = (
    rf"(?:\d+(?::\d{{1,2}}){{1,2}}(?:[.,]\d+)?|"
    rf"(?:\d+(?:\.\d+)?\s*(?:{_UNIT}|[hm](?=\d))\s*(?:and\s)?)+(?<!\s)|{_NUMBER})"
)
_JOINT = (
    r"[\s\]\"'°)]*(?:-+>?|–|—|~|to|until|till|through|and|到|至)\s*(?:about\s|the\s)?"
    r"(?:second\s|time\s|第)?[\s\[\"'(]*|[^\d.;]{0,24}?(?<![a-z])"
    r"(?P<end>ends?|ending|end_time|stops?|finish\w*|until|结束|(?P<length>last\w*|持续))"
    r"(?![a-z])\D{0,16}?"
)
_SPAN = re.compile(rf"(?i)(?<![A-Za-z0-9_.:])(?P<a>{_TIME})(?:{_JOINT})(?P<b>{_TIME})(?![\w.]*\d)")
_PAIR = re.compile(rf"(?i)[\[(]\s*(?P<a>{_TIME})\s*[,;]\s*(?P<b>{_TIME})\s*[\])]")
_BARE = re.compile(rf"(?i)\W*(?P<a>{_TIME})\s*[,;\s]\s*(?P<b>{_TIME})\W*")
_FRAMES = re.compile(r"(?i)\bframes?\W{0,3}\d|\d\s*(?:st|nd|rd|th)?\s*frames?\b|帧")
_plainly = rewriter("spans")
_STARTS, _ENDS = re.compile(r"(?i)start|begin|from|onset"), re.compile(r"end|stop|^to$|offset")
_MAX_TEXT = 2_000  # two times fit into less


def read_span(text: str) -> Span | Unread:
    """Return the one span of an answer, in seconds, the start before the end.

    A number without a unit is seconds, or takes the unit of the end ("3 to 5 minutes"). What is no
    end, as the length of the clip or a confidence, does not count.

    >>> read_span("1:05 - 1:20.5"), read_span("from 3 to 5 minutes (2 minutes long)")
    ((65.0, 80.5), (180.0, 300.0))
    >>> read_span('{"end": 9, "start": 2}'), read_span("It starts at 12 s and lasts 6 s")
    ((2.0, 9.0), (12.0, 18.0))
    >>> read_span("frames 2 to 9").reason, read_span("[20, 10]").reason
    ('frames without a rate', 'the end is not after the start')
    """
    if len(text) > _MAX_TEXT:
        return Unread("no span of time")
    try:
        return span_of(json.loads(text))
    except (ValueError, RecursionError):
        pass
    text = _plainly(with_digits(text))
    if _FRAMES.search(text):
        return Unread("frames without a rate")
    _, text = conclusion(text, lambda part: _SPAN.search(part) is not None)
    whole = _BARE.fullmatch(text)
    found = [whole] if whole else [*_SPAN.finditer(text)] or [*_PAIR.finditer(text)]
    kept = {_seconds(match) for match in found if not is_taken_back(text, match)}
    if len(kept) > 1:
        return Unread(f"{len(kept)} spans of time")
    if not kept:
        return Unread(f"only negated: {found[0][0]}" if found else "no span of time")
    start, end = kept.pop()
    return (start, end) if start < end else Unread("the end is not after the start")


def span_of(value: Any) -> Span | Unread:
    """Return the span of a value as JSON has it: two times, or an object or list that holds them.

    Raises:
        ValueError: If the value is neither an object nor a list.
    """
    if isinstance(value, Mapping):
        starts = [value[key] for key in value if _STARTS.search(str(key))]
        ends = [value[key] for key in value if _ENDS.search(str(key))]
        if len(starts) == len(ends) == 1:
            return span_of([starts[0], ends[0]])
        inner = [v for v in value.values() if isinstance(v, list | tuple | str)]
        return span_of(inner[:1]) if inner else Unread("no span of time")
    if isinstance(value, str) or not isinstance(value, Sequence):
        raise ValueError("neither an object nor a list")
    if len(value) == 1:
        return read_span(value[0]) if isinstance(value[0], str) else span_of(value[0])
    return read_span(" to ".join(map(str, value))) if len(value) == 2 else Unread("no span of time")


def _seconds(match: re.Match[str]) -> Span:
    start, end = _time(match["a"], match["b"]), _time(match["b"], "")
    return (start, start + end) if match.groupdict().get("length") else (start, end)


def _time(text: str, other: str) -> float:
    """A time in seconds; without a unit it has the one of the other."""
    if ":" in text:
        fields = map(float, text.replace(",", ".").split(":"))
        return reduce(lambda total, field: 60 * total + field, fields)
    parts = _MEASURE.findall(text)
    if len(parts) == 1 and not parts[0][1]:
        units = {unit for _, unit in _MEASURE.findall(other)} if ":" not in other else set()
        parts = [(parts[0][0], units.pop() if len(units) == 1 else "")]
    return sum(float(number) * _seconds_in(unit.lower()) for number, unit in parts)


def _seconds_in(name: str) -> float:
    unit = parse_unit("min" if name in ("m", "分") else name or "s")
    assert unit is not None, name  # the pattern knows no other units
    return float(unit.factor)
