"""Rows that stay on the disk are those that are read into memory, whatever file they are in."""

from __future__ import annotations

import csv
import gzip
import io
import json
import tracemalloc
from pathlib import Path
from typing import Any

import datasets
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from mmr1.config import DataConfig
from mmr1.data.index import is_index
from mmr1.data.quarantine import Quarantine
from mmr1.data.readers import json_files, read_rows
from mmr1.data.readers.json_files import array_elements
from mmr1.data.rows import Rows
from mmr1.data.sources import load_samples


def picture(colour: str) -> bytes:
    buffer = io.BytesIO()
    Image.new("RGB", (30, 30), colour).save(buffer, "PNG")
    return buffer.getvalue()


def rows(count: int = 150) -> list[dict[str, Any]]:
    found = []
    for number in range(count):
        image = {"bytes": picture("red" if number % 2 else "blue"), "path": None}
        tag = "<image>" if number % 3 == 0 else ""
        found.append({
            "problem": f"{tag}Wie groß ist {number}? [{{\"x\": 1}}]" if number != 70 else "",
            "images": [image] if tag else [],
            "answer": str(number),
            "kind": "even" if number % 2 == 0 else "odd",
        })  # fmt: skip
    return found


def texts(count: int = 150) -> list[dict[str, Any]]:
    return [{k: v for k, v in row.items() if k != "images"} | {"problem": f"{n}?"}
            for n, row in enumerate(rows(count))]  # fmt: skip


def write_parquet(path: Path) -> None:
    table = pa.Table.from_pylist(rows())
    kinds = table["kind"].dictionary_encode()
    table = table.set_column(table.schema.get_field_index("kind"), "kind", kinds)
    pq.write_table(table, path, row_group_size=40)


def make(kind: str, folder: Path) -> str:
    """A dataset of one kind; what names it."""
    listed = texts()
    lines = [json.dumps(row, ensure_ascii=False) + "\n" for row in listed]
    if kind == "array":
        (folder / "rows.json").write_text("\ufeff" + json.dumps(listed, indent=1))
    elif kind == "lines named .json":
        (folder / "rows.json").write_text("".join(lines))
    elif kind == "folder":
        (folder / "train-0.jsonl").write_text("".join(lines[:80]) + "{broken\n")
        (folder / "train-1.jsonl").write_text("\n".join(lines[80:]))
        (folder / "test.jsonl").write_text(lines[0])
        return str(folder)
    elif kind == "saved":
        features = datasets.Features({
            "problem": datasets.Value("string"), "answer": datasets.Value("string"),
            "images": datasets.List(datasets.Image()), "kind": datasets.Value("string"),
        })  # fmt: skip
        datasets.Dataset.from_list(rows(), features).save_to_disk(folder / "saved")
        return str(folder / "saved")
    elif kind in (".jsonl.gz", ".json.gz"):
        broken = "" if kind == ".json.gz" else "{broken\n"
        text = json.dumps(listed) if kind == ".json.gz" else broken + "".join(lines)
        (folder / f"rows{kind}").write_bytes(gzip.compress(text.encode()))
        return str(folder / f"rows{kind}")
    elif kind == ".csv":
        with (folder / "rows.csv").open("w", newline="") as file:
            writer = csv.DictWriter(file, list(listed[0]))
            writer.writeheader()
            writer.writerows(listed)
            file.write("too,many,fields,here\n")
        return str(folder / "rows.csv")
    elif kind == "parquet":
        write_parquet(folder / "rows.parquet")
        return str(folder / "rows.parquet")
    return str(folder / "rows.json")


PACKED = (".jsonl.gz", ".json.gz", ".csv")
KINDS = ("array", "lines named .json", "folder", "saved", "parquet", *PACKED)


@pytest.mark.parametrize("kind", KINDS)
def test_the_samples_are_those_read_into_memory(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = make(kind, tmp_path)
    first, second, third = Quarantine(0.5), Quarantine(0.5), Quarantine(0.5)
    config = DataConfig(max_bad_fraction=0.5, prompt_template="boxed")
    listed = load_samples(spec, config, first)
    assert isinstance(listed, list)
    assert len(listed) > 140
    monkeypatch.setattr("mmr1.data.sources.FROM_BYTES", 0)
    stored = load_samples(spec, config, second)
    assert isinstance(stored, Rows)
    assert list(stored) == listed
    assert [stored[n] for n in (-1, 3, 0)] == [listed[n] for n in (-1, 3, 0)]
    assert second.dropped == first.dropped
    sound = ("array", "lines named .json", ".json.gz")
    assert bool(first.dropped) == (kind not in sound)
    assert list(load_samples(spec, config, third)) == listed
    assert third.dropped == first.dropped
    assert any(is_index(path) for path in tmp_path.rglob("*"))


def test_numbers_that_no_copy_holds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They are read into memory."""
    path = tmp_path / "rows.jsonl.gz"
    path.write_bytes(gzip.compress(b'{"problem": "2 ** 70?", "answer": 1180591620717411303424}'))
    monkeypatch.setattr("mmr1.data.sources.FROM_BYTES", 0)
    assert [sample.answer for sample in load_samples(path)] == [2**70]
    assert not list(tmp_path.glob(".*"))


def test_a_parquet_file_that_changed_is_unpacked_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mmr1.data.sources.FROM_BYTES", 0)
    path = tmp_path / "rows.parquet"
    for answer in ("1", "2"):
        pq.write_table(pa.Table.from_pylist([{"problem": "?", "answer": answer}]), path)
        assert [s.answer for s in load_samples(path)] == [answer]
    assert len(list(tmp_path.glob(".rows.parquet.copy-*"))) == 1


def test_a_file_beside_the_first_that_changed_is_read_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mmr1.data.sources.FROM_BYTES", 0)
    for name in ("a", "b"):
        (tmp_path / f"{name}.jsonl").write_text('{"problem": "?", "answer": "1"}\n')
    assert len(load_samples(tmp_path)) == 2
    with (tmp_path / "b.jsonl").open("a") as file:
        file.write('{"problem": "?", "answer": "3"}\n')
    assert [s.answer for s in load_samples(tmp_path)] == ["1", "1", "3"]
    assert len(list(tmp_path.glob(".a.jsonl.copy-*"))) == 1


values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text() | st.floats(allow_nan=False,
                                                                      allow_infinity=False),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=8,
)  # fmt: skip


@settings(deadline=None)
@given(st.lists(values), st.sampled_from([None, 1]), st.booleans())
def test_an_array_is_read_row_by_row(tmp_path_factory, content, indent, ascii_) -> None:
    path = tmp_path_factory.mktemp("array") / "a.json"
    try:
        path.write_text(json.dumps(content, indent=indent, ensure_ascii=ascii_), encoding="utf-8")
    except UnicodeEncodeError:
        return
    assert list(array_elements(path)) == content


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("[1, 2", "truncated"),
        ("[1 2]", "expected ',' or ']' at byte 3: '2\\]'"),
        ("[1,]", "trailing comma"),
        ("[1] 2", "trailing characters"),
        ('[{"a": NaN}]', "NaN"),
        ('[{"a": tru}' + " " * 40 + "]", "invalid character"),
        ('["abc', "truncated"),
        ("[", "truncated"),
    ],
)
def test_what_is_no_array_is_refused(tmp_path: Path, text: str, reason: str) -> None:
    (tmp_path / "a.json").write_text(text)
    with pytest.raises(ValueError, match=rf"a\.json: not valid JSON \(.*{reason}"):
        list(read_rows(tmp_path / "a.json"))


def test_an_array_is_not_held_in_memory(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    path.write_text(json.dumps([{"problem": f"{n:0500d}"} for n in range(8000)]))
    tracemalloc.start()
    count = sum(1 for _ in read_rows(path))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert count == 8000
    assert peak < path.stat().st_size / 4


def test_a_large_object_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(json_files, "LARGEST_OBJECT", 10)
    (tmp_path / "a.json").write_text('{"questions": [{"problem": "?"}]}')
    with pytest.raises(ValueError, match=r"jq -c '\.questions\[\]' a\.json > a\.jsonl"):
        list(read_rows(tmp_path / "a.json"))
