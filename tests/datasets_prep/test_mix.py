"""A mixture has as many records as were asked for, near the shares, without repeats."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from datasets_prep.select import mix, save
from mmr1.types import Sample


def source(name: str, size: int) -> list[Sample]:
    return [Sample(f"{name}-{i}", ()) for i in range(size)]


@given(st.lists(st.floats(0.05, 10), min_size=1, max_size=5), st.integers(0, 60))
def test_counts_are_exact_and_near_the_shares(shares, count):
    names = [f"{i}.jsonl" for i in range(len(shares))]
    mixed = mix({n: source(n, 60) for n in names}, dict(zip(names, shares, strict=True)), count, 0)
    assert len(mixed) == len({s.id for s in mixed}) == count
    for name, share in zip(names, shares, strict=True):
        from_source = sum(name in s.id for s in mixed)
        assert abs(from_source - count * share / sum(shares)) <= 1


def test_records_are_named_as_such(tmp_path):
    with pytest.raises(ValueError, match=r"name the output mixed\.jsonl"):
        save(tmp_path / "mixed", source("a", 2))


def test_a_source_that_is_too_small_is_named():
    with pytest.raises(ValueError, match=r"b.jsonl has 2 samples; its share needs 5"):
        mix(
            {"a.jsonl": source("a", 9), "b.jsonl": source("b", 2)},
            {"a.jsonl": 1, "b.jsonl": 1},
            10,
            0,
        )
