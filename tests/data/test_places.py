"""A sample that is left out is named by its file and line, not by its id alone."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from mmr1.config import DataConfig
from mmr1.data import sources
from mmr1.data.quarantine import Quarantine
from mmr1.data.sources import keep_fitting, load_samples


@pytest.mark.parametrize("large", [False, True])
@pytest.mark.parametrize("kind", ["jsonl", "json"])
def test_a_prompt_that_is_too_long(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, large: bool, kind: str
) -> None:
    if large:
        monkeypatch.setattr(sources, "FROM_BYTES", 0)
    path = tmp_path / f"rows.{kind}"
    rows = [{"problem": text, "answer": "1"} for text in ("x", 7, "xx", "x" * 90, "xxx")]
    lines = "".join(json.dumps(row) + "\n" for row in rows)
    path.write_text(lines if kind == "jsonl" else json.dumps(rows))
    place = f"{path}:4" if kind == "jsonl" else f"{path}[3]"
    quarantine = Quarantine(0.5)
    samples = load_samples(path, DataConfig(), quarantine)
    length = lambda sample: len(sample.question)  # noqa: E731
    kept = keep_fitting(str(path), samples, length, 50, quarantine)
    assert [sample.question for sample in kept] == ["x", "xx", "xxx"]
    left = quarantine.dropped[-1]
    assert (left["row"], left["place"]) == ("rows-000003", place)
    quarantine.max_fraction = 0.0
    said = re.escape(f"{place} ('rows-000003'): its prompt has 90 tokens")
    with pytest.raises(ValueError, match=said):
        keep_fitting(str(path), samples, length, 50, quarantine)
