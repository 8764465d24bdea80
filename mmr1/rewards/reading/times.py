"""Clock times and dates, as themselves and never as ratios or differences."""

from __future__ import annotations

import re
from dataclasses import dataclass
from math import gcd

from mmr1.rewards.reading.words import with_digits

_CLOCK = re.compile(
    r"(?i)(\d{1,2})(?::(\d{2})(?::(\d{2}))?)?(?:\s*o['’]clock)?\s*(?:([ap])\.?\s?m\.?)?"
)
_SPOKEN = re.compile(
    r"(?i)(half|1/2|(?:a )?quarter|1/4|\d{1,2})(?: minutes?)? (past|to|after|before) (\d{1,2})"
    r"(?:\s*([ap])\.?m\.?)?"
)
_CHINESE = re.compile(r"(?:[上下]午)?(\d{1,2})[点时](?:(\d{1,2})分?|半)?")
_PREPOSITION = re.compile(r"(?i)^(?:at|on|about|around) ")
_MONTHS = ["jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec"]
_MONTH = r"(?P<name>[A-Za-z]{3,9})\.?"
_DAY = r"(?P<day>\d{1,2})(?:st|nd|rd|th)?"
_DATES = (
    re.compile(r"(?P<year>\d{4})([-/.])(?P<month>\d{1,2})\2(?P<day>\d{1,2})"),
    re.compile(r"(?P<year>\d{4})-(?P<month>0[1-9])"),
    re.compile(r"(?P<year>\d{4})年(?P<month>\d{1,2})月(?:(?P<day>\d{1,2})[日号])?"),
    re.compile(rf"{_MONTH} {_DAY},? (?P<year>\d{{4}})"),
    re.compile(rf"(?:the )?{_DAY}(?: of)? {_MONTH},? (?P<year>\d{{4}})"),
    re.compile(rf"{_MONTH} (?P<year>\d{{4}})"),
)
_YEAR_LAST = re.compile(r"(\d{1,2})([-/.])(\d{1,2})\2(\d{4})")

Date = tuple[str, int, int, int]


@dataclass(frozen=True, slots=True)
class Clock:
    """A time of day.

    Attributes:
        seconds: Seconds since midnight, or since noon if ``half`` is left out and it is afternoon.
        half: "a" or "p"; "24p" where the hour is above 12; empty where it is left out.
    """

    seconds: int
    half: str = ""

    def same(self, other: Clock) -> bool:
        """Return True for the same time; AM or PM left out on one side does not count."""
        halves = {self.half[-1:], other.half[-1:]}
        if "" in halves:  # 5:30 is 5:30 PM, and not 17:30
            return self.seconds == other.seconds and "24" not in self.half + other.half
        return self.seconds == other.seconds and len(halves) == 1


def read_clock(text: str) -> Clock | None:
    """Return a time of day, or None.

    >>> read_clock("3:30 PM").same(read_clock("15:30")), read_clock("half past three").seconds / 60
    (True, 210.0)
    """
    if not any(map(str.isalnum, text[:1])) or len(text) > 40:
        return None
    text = with_digits(_PREPOSITION.sub("", text))
    if text.lower() in ("noon", "midnight"):
        return Clock(0, "p" if text.lower() == "noon" else "a")
    if (match := _CLOCK.fullmatch(text)) and not text.isdigit():
        return _clock(int(match[1]), int(match[2] or 0), int(match[3] or 0), match[4])
    if match := _CHINESE.fullmatch(text):
        return _clock(int(match[1]), int(match[2] or (30 if text[-1] == "半" else 0)), 0, None)
    if match := _SPOKEN.fullmatch(text):
        named = {"h": 30, "1/2": 30, "q": 15, "a": 15, "1/4": 15}
        minutes = named.get(match[1]) or named.get(match[1][0].lower()) or int(match[1])
        later = match[2].lower() in ("past", "after")
        hour = int(match[3]) if later else (int(match[3]) - 2) % 12 + 1
        return _clock(hour, minutes if later else 60 - minutes, 0, match[4])
    return None


def _clock(hour: int, minute: int, second: int, half: str | None) -> Clock | None:
    if hour > 24 or minute > 59 or second > 59 or (half and not 0 < hour < 13):
        return None
    half = half.lower() if half else "24p" if hour > 12 else "" if hour else "a"
    return Clock((hour % 12) * 3600 + minute * 60 + second, half)


def is_ratio(text: str) -> bool:
    """Return True if a clock time may be a ratio: two numbers in lowest terms."""
    terms = text.split(":")
    plain = len(terms) == 2 and all(t.isdigit() and str(int(t)) == t for t in terms)
    return plain and gcd(*map(int, terms)) == 1


def read_date(text: str) -> Date | None:
    """Return a date as its order of writing and its three numbers, or None.

    The day of ``05/01/2019`` may be the 5th or the 1st, so its order is kept as it is written. A
    month has day 0.

    >>> read_date("2019-05-01") == read_date("May 1st, 2019"), read_date("2019-5")
    (True, None)
    """
    if not 6 <= len(text) <= 40:
        return None
    text = _PREPOSITION.sub("", text)
    for pattern in _DATES:
        if match := pattern.fullmatch(text):
            parts = match.groupdict()
            month = _month(parts.get("name") or "") or int(parts.get("month") or 0)
            day = int(parts.get("day") or 0)
            inside = 1 <= month <= 12 and day <= 31
            return ("year first", int(match["year"]), month, day) if inside else None
    if match := _YEAR_LAST.fullmatch(text):
        first, second, year = int(match[1]), int(match[3]), int(match[4])
        inside = 0 < min(first, second) <= 12 and 0 < max(first, second) <= 31
        return ("year last", year, first, second) if inside else None
    return None


def _month(name: str) -> int:
    stem = name[:3].lower()
    return _MONTHS.index(stem) + 1 if stem in _MONTHS else 0
