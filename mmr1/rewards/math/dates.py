"""Dates: ``2019-05-01`` is a day, not a subtraction."""

from __future__ import annotations

import re

_YEAR_FIRST = re.compile(r"(\d{4})([-/.])(\d{1,2})\2(\d{1,2})")
_YEAR_LAST = re.compile(r"(\d{1,2})([-/.])(\d{1,2})\2(\d{4})")
_MONTH = re.compile(r"(\d{4})-0([1-9])")

Date = tuple[str, int, int, int]


def read_date(text: str) -> Date | None:
    """A date as its order of writing and its three numbers, or None.

    The day of ``05/01/2019`` may be the 5th or the 1st, so its order is kept as it is written. A
    month has day 0.

    >>> read_date("2019-05-01") == read_date("2019/5/1"), read_date("2019-5")
    (True, None)
    """
    if match := _YEAR_FIRST.fullmatch(text):
        year, month, day = int(match[1]), int(match[3]), int(match[4])
        return ("year first", year, month, day) if _in_a_year(month, day) else None
    if match := _YEAR_LAST.fullmatch(text):
        first, second, year = int(match[1]), int(match[3]), int(match[4])
        is_date = _in_a_year(first, second) or _in_a_year(second, first)
        return ("year last", year, first, second) if is_date else None
    if match := _MONTH.fullmatch(text):
        return "year first", int(match[1]), int(match[2]), 0
    return None


def _in_a_year(month: int, day: int) -> bool:
    return 1 <= month <= 12 and 1 <= day <= 31
