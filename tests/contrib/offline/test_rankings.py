"""Rankings of the completions that were sampled for records."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from mmr1.data.record import read_records
from mmr1_contrib.offline.preferences import ranking_of
from mmr1_contrib.offline.rankings import rank_completions

VALUES = {
    "a": [("wrong", 0.0), ("first", 1.0), ("first", 1.0), ("second", 1.0)],
    "b": [("new", 1.0), ("wrong too", 0.0), ("", 0.0)],
    "c": [("not judged", None), ("right", 1.0)],
    "elsewhere": [("of another record", 1.0), ("and so is this", 0.0)],
}


@pytest.fixture
def files(tmp_path):
    """Records, and the completions of ``mmr1 eval`` for them."""
    asked = [{"role": "user", "content": "What is it?"}]
    rows = [{"version": 1, "id": name, "messages": asked, "answer": "1"} for name in "abcd"]
    completions = [
        {"id": name, "answer": "1", "completion": text, "components": {"math": value, "short": 0.5}}
        for name, valued in VALUES.items()
        for text, value in valued
    ]
    for name, lines in (("records", rows), ("completions", completions)):
        text = "".join(json.dumps(line) + "\n" for line in lines)
        (tmp_path / f"{name}.jsonl").write_text(text)
    return tmp_path / "records.jsonl", tmp_path / "completions.jsonl"


def test_rankings_hold_one_completion_of_each_value(files, tmp_path):
    out = tmp_path / "rankings.jsonl"
    assert rank_completions(*files, out, "math") == (2, 2, 4)
    written = {sample.id: ranking_of(sample) for sample in read_records(out)}
    assert written == {"a": ("first", "wrong"), "b": ("new", "wrong too")}
    with pytest.raises(ValueError, match=r"different 'short' .* nothing to rank"):
        rank_completions(*files, tmp_path / "none.jsonl", "short")
    assert not (tmp_path / "none.jsonl").exists()


def test_rankings_is_a_command_of_mmr1_data(files, tmp_path):
    out = tmp_path / "rankings.jsonl"
    command = ["rankings", *map(str, files), "--output", str(out), "--function", "math"]
    finished = subprocess.run(
        [sys.executable, "-m", "datasets_prep", *command], capture_output=True, text=True
    )
    assert finished.returncode == 0, finished.stderr
    assert "2 rankings, of 4 records" in finished.stdout
