"""Odd rows of every format: they are read, or refused with a reason; no other error gets out."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from datasets_prep.conversion import convert
from mmr1.config import DataConfig
from mmr1.data import sources
from mmr1.data.forms import FORMS
from mmr1.data.forms.form import Form
from mmr1.data.quarantine import Quarantine
from mmr1.data.sources import load_samples
from mmr1.types import Sample
from tests.data.form_rows import examples, read, write_media, written

ODD = st.recursive(
    st.sampled_from(
        [
            None,
            True,
            0,
            7,
            -1,
            2.5,
            1e30,
            "",
            "x",
            "<image>",
            "[",
            "{}",
            "a.png",
            "[{",
            "A",
            b"x",
            [],
        ]
    ),
    lambda inner: (
        st.lists(inner, max_size=2)
        | st.dictionaries(
            st.sampled_from(["type", "text", "path", "bytes", "role", "content", "bbox", "a"]),
            inner,
            max_size=2,
        )
    ),
    max_leaves=3,
)
ROWS = [
    pytest.param(FORMS.load(name), row, id=f"{name}-{number}")
    for number, (name, _, _, row) in enumerate(examples())
]


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("media")
    write_media(folder)
    return folder


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """The ways to everything in a value."""
    if not isinstance(value, dict | list):
        return [path]
    inner = value.items() if isinstance(value, dict) else enumerate(value)
    return [path] + [found for key, part in inner for found in places(part, (*path, key))]


def changed(row: dict[str, Any], path: tuple[Any, ...], value: Any) -> dict[str, Any]:
    row = copy.deepcopy(row)
    holder: Any = row
    for key in path[:-1]:
        holder = holder[key]
    holder[path[-1]] = value
    return row


@pytest.mark.parametrize(("form", "row"), ROWS)
def test_only_the_typed_error_comes_of_odd_rows(
    root: Path, form: Form, row: dict[str, Any]
) -> None:
    where = [path for path in places(row) if path]
    more = (
        "images", "videos", "options", "choices", "task", "objects", "tools", "completion",
        "process", "history", "system", "image_2", "file_name", "problem_type", "unit",
    )  # fmt: skip

    @settings(max_examples=40, deadline=None, derandomize=True,
              suppress_health_check=list(HealthCheck))  # fmt: skip
    @given(st.sampled_from([*where, *((name,) for name in more)]), ODD, st.booleans())
    def check(path: tuple[Any, ...], value: Any, named: bool) -> None:
        try:
            sample = read(changed(row, path, value), root, form.name if named else None)
        except ValueError as error:
            assert str(error)
        else:
            assert isinstance(sample, Sample)

    check()


ODD_ROWS: list[dict[str, Any]] = [
    {"prompt": "x?", "reward_model": "[1]"},
    {"prompt": "x?", "reward_model": "{"},
    {"prompt": "x?", "reward_model": ["5"]},
    {"messages": [{"role": "user", "content": 7}]},
    {"messages": [{"role": "user", "content": [None]}]},
    {"messages": [{"role": "user", "content": [{"type": {}}]}]},
    {"problem": {"text": "x?"}, "answer": "5"},
    {"query": "x?", "response": "y", "history": [None]},
    {"version": 1, "id": "x", "messages": [{"role": {}, "content": "x"}]},
]


@pytest.mark.parametrize("large", [False, True])
def test_odd_rows_are_quarantined_by_file_and_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, large: bool
) -> None:
    if large:
        monkeypatch.setattr(sources, "FROM_BYTES", 0)
    good = {"problem": "1 + 1?", "answer": "2"}
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in (good, *ODD_ROWS)))
    quarantine = Quarantine(0.95)
    (sample,) = load_samples(path, DataConfig(), quarantine)
    assert sample.answer == "2"
    rows = [entry["row"] for entry in quarantine.dropped]
    assert rows == [f"{path}:{number}" for number in range(2, 2 + len(ODD_ROWS))]
    assert all(entry["reason"] for entry in quarantine.dropped)
    with pytest.raises(ValueError, match=rf"{path}:2: reward_model"):
        load_samples(path)


def test_a_reward_model_as_text_is_read(root: Path) -> None:
    model = json.dumps({"style": "rule", "ground_truth": "5"})
    sample = read({"prompt": "x?", "reward_model": model}, root)
    assert (written(sample), sample.answer) == (["user: x?"], "5")


@pytest.mark.parametrize(
    "row",
    [
        {"messages": [{"role": "user", "content": [{"type": "image_url"}]}]},
        {"messages": [{"role": "user", "content": [{"type": {}}]}]},
        {"messages": 7},
    ],
)
def test_a_conversion_drops_odd_rows(tmp_path: Path, row: dict[str, Any]) -> None:
    good = {"messages": [{"role": "user", "content": "x?"}, {"role": "assistant", "content": "y"}]}
    (tmp_path / "rows.jsonl").write_text(f"{json.dumps(good)}\n{json.dumps(row)}\n")
    manifest = convert("sharegpt", tmp_path / "rows.jsonl", tmp_path / "out", workers=1)
    assert manifest["counts"] == {"rows": 2, "records": 1, "dropped": 1}
