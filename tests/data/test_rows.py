"""Samples that stay on the disk: equal to those in memory, and read once."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from datasets_prep.manifest import content_hashes
from mmr1.config import Config, DataConfig
from mmr1.data.forms import named_form
from mmr1.data.quarantine import Quarantine
from mmr1.data.rows import Rows, kinds_of, measured, open_rows
from mmr1.data.sampler import Sampler
from mmr1.data.sources import keep_fitting, load_samples
from mmr1.data.stores import PackedStore
from mmr1.trainer.inputs import gold_facts, length_facts
from mmr1.types import Message, Sample, TextPart
from tests.vision.media import encoded


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """60 rows: blank lines, some that cannot be used, some with a picture."""
    from PIL import Image

    (tmp_path / "a.png").write_bytes(encoded(Image.new("RGB", (30, 30), "red")))
    lines = []
    for number in range(60):
        row: dict[str, Any] = {"problem": f"Wie groß ist {number}?", "answer": str(number)}
        if number % 3 == 0:
            row |= {"problem": f"<image>{row['problem']}", "images": ["a.png"]}
        if number % 10 == 7:
            row = {"problem": "<image>?", "images": ["none.png"], "answer": "1"}
        lines.append("{broken" if number == 11 else json.dumps(row, ensure_ascii=False))
        lines += [""] * (number % 2)
    (tmp_path / "rows.jsonl").write_text("\n".join(lines), encoding="utf-8")
    return tmp_path / "rows.jsonl"


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every file counts as large."""
    monkeypatch.setattr("mmr1.data.sources.FROM_BYTES", 0)


CONFIG = DataConfig(max_bad_fraction=0.5, prompt_template="think_answer")


def both(path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Any, Rows, Quarantine, Quarantine]:
    first, second = Quarantine(0.5), Quarantine(0.5)
    listed = load_samples(path, CONFIG, first)
    monkeypatch.setattr("mmr1.data.sources.FROM_BYTES", 0)
    rows = load_samples(path, CONFIG, second)
    assert isinstance(listed, list)
    assert isinstance(rows, Rows)
    return listed, rows, first, second


def test_rows_are_the_samples(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    listed, rows, first, second = both(path, monkeypatch)
    assert list(rows) == listed
    assert [rows[i] for i in (0, 5, -1)] == [listed[i] for i in (0, 5, -1)]
    assert list(rows[3:9:2]) == listed[3:9:2]
    assert list(rows[:None]) == listed
    assert rows.ids() == [s.id for s in listed]
    assert list(kinds_of(rows)) == list(kinds_of(listed))
    assert second.dropped == first.dropped
    with pytest.raises(IndexError):
        rows[len(rows)]


def test_the_sampler_draws_the_same(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    listed, rows, *_ = both(path, monkeypatch)
    in_memory, on_disk = Sampler(listed, seed=3), Sampler(rows, seed=3)
    assert on_disk.next(150) == in_memory.next(150)
    assert on_disk.state_dict() == in_memory.state_dict()


def test_rows_are_read_through_once(path: Path) -> None:
    calls: list[int] = []

    def read(row: Any, number: int) -> Sample:
        calls.append(number)
        return Sample(f"s{number}", (Message("user", (TextPart(row["problem"]),)),))

    rows, total, dropped = open_rows(PackedStore([path]), {"x": 1}, read)
    assert (len(rows), total, len(dropped)) == (59, 60, 1)
    assert dropped[0][0] == f"{path}:17"
    assert len(calls) == 59
    rows, total, again = open_rows(PackedStore([path]), {"x": 1}, read)
    assert (len(rows), total, again) == (59, 60, dropped)
    assert len(calls) == 59
    assert rows[20].id == "s21"
    assert calls[59:] == [21]
    open_rows(PackedStore([path]), {"x": 2}, read)  # read in another way
    assert len(calls) == 60 + 59
    with path.open("a") as file:
        file.write('\n{"problem": "new"}')
    assert len(open_rows(PackedStore([path]), {"x": 1}, read)[0]) == 60


def test_lengths_are_measured_once(path: Path, small: None) -> None:
    asked: list[str] = []

    def tokens(sample: Sample) -> int:
        asked.append(sample.id)
        if sample.answer == "4":
            raise ValueError("a header that cannot be read")
        return int(sample.answer)

    for attempt in range(2):
        quarantine = Quarantine(0.99)
        rows = load_samples(path, CONFIG, quarantine)
        unusable = len(quarantine.dropped)
        kept = keep_fitting(str(path), rows, tokens, 40, quarantine)
        assert [s.answer for s in kept] == [
            s.answer for s in rows if int(s.answer) <= 40 and s.answer != "4"
        ]
        reasons = [entry["reason"] for entry in quarantine.dropped[unusable:]]
        assert reasons[0] == "a header that cannot be read"
        assert reasons[1].startswith("its prompt has 41 tokens")
        assert len(reasons) == len(rows) - len(kept)
        # The second time only those that are left out are looked at, to say why.
        assert len(asked) == (len(rows) if attempt == 0 else 0) + len(reasons)
        asked.clear()


def test_another_selection_is_measured_anew(path: Path, small: None) -> None:
    rows = load_samples(path, CONFIG, Quarantine(0.5))
    answers = [measured(r, "answers", {}, lambda b: [int(s.answer) for s in b])
               for r in (rows, rows[:7])]  # fmt: skip
    assert answers[0][:7].tolist() == answers[1].tolist()
    assert len(answers[1]) == 7


def test_rows_stay_when_their_file_changes(path: Path, small: None) -> None:
    rows = load_samples(path, CONFIG, Quarantine(0.5))
    before = list(rows)
    path.write_text(path.read_text().replace("Wie", "What"))
    assert list(rows) == before
    assert [s.question[:4] for s in load_samples(path, CONFIG, Quarantine(0.5))[:2]] == ["What"] * 2


def test_an_edited_format_reads_the_rows_anew(tmp_path: Path, small: None) -> None:
    rows, own = tmp_path / "rows.jsonl", tmp_path / "own.py"
    rows.write_text('{"q": "2 + 1?", "gold": "3"}\n{"q": "2 + 2?", "value": "4"}\n')
    config = Config(model={"path": str(tmp_path)}, data={"format": f"{own}:read"})
    seen, facts = [], []
    for gold in ('row["gold"]', 'row.get("gold", row.get("value"))'):
        own.write_text(f'def read(row): return {{"problem": row["q"], "answer": {gold}}}\n')
        named_form.cache_clear()  # as a new process
        quarantine = Quarantine(0.5)
        samples = load_samples(rows, config.data, quarantine)
        seen.append([s.answer for s in samples])
        facts.append((length_facts(config), gold_facts(config)))
    assert seen == [["3"], ["3", "4"]]
    assert all(old != new for old, new in zip(*facts, strict=True))


def test_repeated_ids_leave_no_index(path: Path, small: None) -> None:
    row = {"version": 1, "id": "a", "messages": [{"role": "user", "content": "?"}]}
    path.write_text(f"{json.dumps(row)}\n" * 2)
    with pytest.raises(ValueError, match="the id 'a' appears twice"):
        load_samples(path)
    assert not list(path.parent.glob(".rows.jsonl.rows-*"))


def test_a_manifest_does_not_know_of_the_index(path: Path, small: None) -> None:
    before = content_hashes(path.parent)
    load_samples(path, CONFIG, Quarantine(0.5))
    assert len(list(path.parent.glob(".rows.jsonl.rows-*.index"))) == 1
    assert content_hashes(path.parent) == before


def test_a_damaged_index_is_made_again(path: Path, small: None) -> None:
    expected = list(load_samples(path, CONFIG, Quarantine(0.5)))
    for index in path.parent.glob(".*.index"):
        index.write_bytes(index.read_bytes()[:100])
        assert list(load_samples(path, CONFIG, Quarantine(0.5))) == expected
        assert index.stat().st_size > 100
