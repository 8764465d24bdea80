"""A mixture has as many records as were asked for, near the shares, without repeats."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from datasets_prep.mix import mix, quotas
from mmr1.data.record import read_records, write_records
from mmr1.types import Message, Sample, TextPart


def source(path: Path, size: int, name: str = "") -> Path:
    message = Message("user", (TextPart("How many?"),))
    write_records(path, [Sample(f"{name or path.stem}-{i}", (message,)) for i in range(size)])
    return path


@given(st.lists(st.floats(0.05, 10), min_size=1, max_size=5), st.integers(0, 60))
def test_counts_are_exact_and_near_the_shares(shares: list[float], count: int) -> None:
    named = {f"{i}.jsonl": share for i, share in enumerate(shares)}
    taken = quotas(dict.fromkeys(named, 60), named, count)
    assert sum(taken.values()) == count
    for name, share in named.items():
        assert abs(taken[name] - count * share / sum(shares)) <= 1


def test_a_source_that_is_too_small_is_named() -> None:
    with pytest.raises(ValueError, match=r"b.jsonl has 2 samples; its share needs 5"):
        quotas({"a.jsonl": 9, "b.jsonl": 2}, {"a.jsonl": 1, "b.jsonl": 1}, 10)


def test_the_mixture_depends_on_the_seed_alone(tmp_path: Path) -> None:
    weights = {str(source(tmp_path / f"{n}.jsonl", 40)): 1.0 for n in "ab"}
    for number, seed in enumerate((1, 1, 2)):
        mix(weights, tmp_path / f"{number}.jsonl", 50, seed)
    first, again, other = ((tmp_path / f"{n}.jsonl").read_text() for n in range(3))
    assert first == again != other
    ids = [s.id for s in read_records(tmp_path / "0.jsonl")]
    assert sorted(i.split("/")[0] for i in ids) == ["a"] * 25 + ["b"] * 25
    assert len(set(ids)) == 50
    assert ids != sorted(ids)


def test_a_folder_with_several_files_is_one_source(tmp_path: Path) -> None:
    source(tmp_path / "in/one.jsonl", 3)
    source(tmp_path / "in/two.jsonl", 4)
    mix({str(tmp_path / "in"): 1.0}, tmp_path / "m.jsonl", 7, 0)
    assert {s.id for s in read_records(tmp_path / "m.jsonl")} == {
        *(f"in/one-{i}" for i in range(3)), *(f"in/two-{i}" for i in range(4)),
    }  # fmt: skip


def test_sources_of_one_name_are_told_apart(tmp_path: Path) -> None:
    """Their ids were equal before, so that nothing could read the mixture."""
    weights = {str(source(tmp_path / f"{n}/train.jsonl", 5)): 1.0 for n in "ab"}
    mix(weights, tmp_path / "m.jsonl", 10, 0)
    assert len(read_records(tmp_path / "m.jsonl")) == 10


def test_what_cannot_be_mixed_leaves_no_file(tmp_path: Path) -> None:
    path = source(tmp_path / "a.jsonl", 3)
    with pytest.raises(ValueError, match=r"name the output mixed\.jsonl"):
        mix({str(path): 1.0}, tmp_path / "mixed", 2, 0)
    line = path.read_text().splitlines()[0]
    path.write_text(f"{line}\n\n{line}\n")
    with pytest.raises(ValueError, match="the id 'a/a-0' appears twice"):
        mix({str(path): 1.0}, tmp_path / "m.jsonl", 2, 0)
    path.write_text(f"{line}\n\n{json.dumps({'version': 1})}\n")
    with pytest.raises(ValueError, match=r"a\.jsonl:3: 'record': .* required field `id`"):
        mix({str(path): 1.0}, tmp_path / "m.jsonl", 2, 0)
    assert [p.name for p in tmp_path.iterdir()] == ["a.jsonl"]
