"""The quick way to read records gives what the schema gives, and nothing that it refuses."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mmr1.data.plain import plain_sample
from mmr1.data.record import checked_sample, decode
from mmr1.vision.paths import resolve_media

ROW: dict[str, Any] = {
    "version": 1,
    "id": "a",
    "messages": [
        {"role": "system", "content": "Think."},
        {"role": "user", "content": [
            {"type": "image", "path": "a.png", "width": 3, "height": 4, "options": {"fps": 1}},
            {"type": "text", "text": "Wie groß?"},
        ]},
    ],
    "answer": [1, 2.5],
    "task": "math",
    "source": None,
    "meta": {"level": 1},
}  # fmt: skip

VALUES: list[Any] = [
    None, True, False, 0, 1, 1.0, -1, "", "a", "user", "text", "video", "a.png", "none.png",
    "<image>", "<|image_pad|>", "\ud800", "ä", [], {}, ["a.png"], {"a": 1}, float("nan"),
]  # fmt: skip
KEYS = [*ROW, "role", "content", "type", "path", "data", "text", "width", "height", "images", "x"]


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("plain")
    (folder / "a.png").write_bytes(b"")
    return folder


def holders(value: Any) -> list[Any]:
    inside = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    own = [value] if isinstance(value, dict | list) and value else []
    return own + [holder for inner in inside for holder in holders(inner)]


@st.composite
def rows(draw: st.DrawFn) -> Any:
    """The row with up to three of its values removed, replaced or added to."""
    row = copy.deepcopy(ROW)
    for _ in range(draw(st.integers(0, 3))):
        holder = draw(st.sampled_from(holders(row)))
        value = copy.deepcopy(draw(st.sampled_from(VALUES)))
        if isinstance(holder, list):
            holder[draw(st.integers(0, len(holder) - 1))] = value
        elif draw(st.booleans()):
            holder[draw(st.sampled_from(sorted(holder)))] = value
        elif draw(st.booleans()):
            holder[draw(st.sampled_from(KEYS))] = value
        elif len(holder) > 1:
            del holder[draw(st.sampled_from(sorted(holder)))]
    return row


def outcome(read: Any, row: Any, root: Path) -> tuple[str, str]:
    try:
        return "sample", repr(read(row, root))
    except ValueError as error:
        return "refused", str(error)


@settings(max_examples=400, deadline=None)
@given(rows())
def test_equal_to_the_schema(root: Path, row: Any) -> None:
    expected = outcome(checked_sample, row, root)
    assert outcome(decode, row, root) == expected
    try:
        sample = plain_sample(row, root, resolve_media)
    except ValueError as error:
        assert expected == ("refused", str(error))
    else:
        assert sample is None or expected == ("sample", repr(sample))


def test_the_usual_rows_are_read_the_quick_way(root: Path) -> None:
    text = {"version": 1, "id": "b", "messages": [{"role": "user", "content": "2 + 2?"}]}
    for row in (ROW, json.loads(json.dumps(ROW)), text):
        assert plain_sample(row, root, resolve_media) == checked_sample(row, root)
