"""A damaged file is one line that names it, whatever its kind; so is one in another encoding."""

from __future__ import annotations

import gzip
import io
import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mmr1.data.readers import read_rows

ROWS = [{"problem": f"{n} + 1?", "answer": str(n + 1)} for n in range(30)]


def content(kind: str) -> bytes:
    lines = "\n".join(map(json.dumps, ROWS)).encode()
    buffer = io.BytesIO()
    if kind == ".parquet":
        pq.write_table(pa.Table.from_pylist(ROWS), buffer)
    else:
        text = lines if "jsonl" in kind else json.dumps(ROWS).encode()
        buffer.write(gzip.compress(text) if kind.endswith(".gz") else text)
    return buffer.getvalue()


KINDS = (".jsonl", ".jsonl.gz", ".json", ".json.gz", ".parquet")
FILES = {kind: content(kind) for kind in KINDS}


@settings(deadline=None, max_examples=60)
@given(st.sampled_from(KINDS), st.floats(0, 0.999), st.none() | st.integers(0, 255))
def test_damage_is_one_line(tmp_path_factory, kind: str, at: float, byte: int | None) -> None:
    data = bytearray(FILES[kind])
    place = int(at * len(data))
    if byte is None:
        del data[place:]
    else:
        data[place] = byte
    path = tmp_path_factory.mktemp("damaged") / f"rows{kind}"
    path.write_bytes(bytes(data))
    try:
        found = list(read_rows(path))
    except ValueError as error:
        assert str(path) in str(error)
    else:
        assert len(found) <= len(ROWS)


@pytest.mark.parametrize(
    ("encoding", "text", "first"),
    [
        ("gbk", "这个图像里有多少个球？", "GBK"),
        ("cp1252", "Où est le café à la crème ?", "CP1252"),
        ("utf-16", "Wie groß?", "UTF-16"),
    ],
)
@pytest.mark.parametrize("kind", [".jsonl", ".json", ".csv"])
def test_another_encoding_is_named(
    tmp_path: Path, encoding: str, text: str, first: str, kind: str
) -> None:
    if kind == ".csv" and encoding == "utf-16":
        pytest.skip("a table in UTF-16 with its mark is read")
    row = {"problem": text, "answer": "1"}
    written = json.dumps([row] if kind == ".json" else row, ensure_ascii=False)
    if kind == ".csv":
        written = f"problem,answer\n{text},1\n"
    path = tmp_path / f"rows{kind}"
    path.write_bytes(written.encode(encoding))
    with pytest.raises(ValueError, match=rf"rows\{kind}.*not UTF-8 text .* iconv -f {first} "):
        list(read_rows(path))
