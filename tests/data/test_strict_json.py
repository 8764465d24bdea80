"""JSON is read and written as ``json`` does it, to the last digit; what is not JSON is refused."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mmr1.data.record import dump, dump_parsed, parse_json

NUMBERS = st.integers() | st.integers(-(2**80), 2**80) | st.floats(allow_nan=False)
TEXT = st.text(st.characters(exclude_categories=[]), max_size=8)  # halves of surrogate pairs too
VALUES = st.recursive(
    st.none() | st.booleans() | NUMBERS.filter(lambda n: abs(n) != float("inf")) | TEXT,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXT, inner, max_size=4),
    max_leaves=12,
)
DIGITS = st.from_regex(
    r"-?(0|[1-9][0-9]{0,40})(\.[0-9]{1,40})?([eE][+-]?[0-9]{1,3})?", fullmatch=True
)


def half(value: Any) -> bool:
    """Whether a text in it is none that UTF-8 has."""
    try:
        json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        return True
    return False


@settings(deadline=None)
@given(VALUES, st.booleans())
def test_values_are_read_as_json_reads_them(value: Any, plain: bool) -> None:
    text = json.dumps(value, ensure_ascii=half(value) or plain)
    if half(value):
        with pytest.raises(ValueError, match="not valid JSON"):
            parse_json(text)
        return
    expected = repr(json.loads(text))  # tells 1 from 1.0, and -0.0 from 0.0
    assert repr(parse_json(text)) == repr(parse_json(text.encode())) == expected


@settings(deadline=None)
@given(DIGITS)
def test_numbers_are_read_as_json_reads_them(text: str) -> None:
    if "inf" in (expected := repr(json.loads(text))):
        with pytest.raises(ValueError, match="Number out of range"):
            parse_json(text)
    else:
        assert repr(parse_json(text)) == expected


@settings(deadline=None)
@given(VALUES.filter(lambda value: not half(value)))
def test_what_was_read_is_written_so_that_json_reads_the_same(value: Any) -> None:
    line = dump_parsed(value)
    assert b"\n" not in line
    assert repr(json.loads(line)) == repr(value)


def test_lines_are_spaced_as_others_are() -> None:
    row = {"id": "ä", "answer": [1, 2.5, None, True], "meta": {"a": {"b": "c, d: e"}}}
    assert dump_parsed(row).decode() == dump(row)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("NaN", "invalid character"),
        ('{"a": -Infinity}', "invalid character"),
        ('{"a": 1,}', r"not valid JSON \("),
        ("[1] 2", r"not valid JSON \(trailing characters"),
        ("[" * 100_000, "nested too deeply"),
        (b'"\xff"', "not UTF-8 text"),
        ('"\x01"', "invalid character"),
        ("01", "invalid number"),
        ("", "truncated"),
    ],
)
def test_what_is_no_json(text: str | bytes, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        parse_json(text)
