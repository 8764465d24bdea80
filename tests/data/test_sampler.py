"""The order: reproducible, without repeats, in proportion, and resumed exactly."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mmr1.data.sampler import Sampler
from mmr1.types import Sample


def make(prefix: str, count: int) -> list[Sample]:
    return [Sample(f"{prefix}{i}", ()) for i in range(count)]


def ids(samples: list[Sample]) -> list[str]:
    return [s.id for s in samples]


def test_every_epoch_is_another_permutation() -> None:
    sampler = Sampler(make("a", 20), seed=1)
    first, second = ids(sampler.next(20)), ids(sampler.next(20))
    assert sorted(first) == sorted(second) == sorted(ids(make("a", 20)))
    assert first != second
    assert ids(Sampler(make("a", 20), seed=1).next(20)) == first
    assert ids(Sampler(make("a", 20), seed=2).next(20)) != first


@given(st.integers(0, 25), st.integers(0, 25))
def test_a_peek_changes_nothing(drawn: int, count: int) -> None:
    sampler, without_peek = (
        Sampler({"a": make("a", 7), "b": make("b", 3)}, seed=1) for _ in range(2)
    )
    sampler.next(drawn), without_peek.next(drawn)
    peeked = ids(sampler.peek(count))
    assert sampler.state_dict() == without_peek.state_dict()
    assert ids(sampler.next(count)) == peeked == ids(without_peek.next(count))


def test_the_order_is_the_one_it_always_was() -> None:
    # Written down: a change here breaks the resumption of every saved run, and raises _ORDER.
    assert ids(Sampler(make("", 6), seed=0).next(9)) == GOLDEN


def test_the_order_does_not_depend_on_paths() -> None:
    here, there = ({f"{folder}/rl.jsonl": make("", 20)} for folder in ("data", "/mnt/data"))
    assert ids(Sampler(here, seed=3).next(45)) == ids(Sampler(there, seed=3).next(45))


def test_sources_of_one_length_have_orders_of_their_own() -> None:
    drawn = ids(Sampler({"a": make("a", 20), "b": make("b", 20)}, seed=0).next(40))
    assert [i[1:] for i in drawn if i[0] == "a"] != [i[1:] for i in drawn if i[0] == "b"]


GOLDEN = ["0", "4", "1", "2", "5", "3", "1", "4", "0"]

mixtures = st.dictionaries(
    st.sampled_from("abcd"), st.tuples(st.integers(1, 9), st.floats(0.1, 10)), min_size=1
)


@given(mixtures, st.integers(0, 2**32), st.lists(st.integers(0, 7), max_size=12))
def test_requests_weights_and_resumption(
    mixture: dict[str, tuple[int, float]], seed: int, requests: list[int]
) -> None:
    sources = {name: make(name, count) for name, (count, _) in mixture.items()}
    weights = {name: weight for name, (_, weight) in mixture.items()}
    whole = ids(Sampler(sources, seed, weights).next(sum(requests)))
    pieces: list[str] = []
    state = Sampler(sources, seed, weights).state_dict()
    for count in requests:  # a new process after every request
        sampler = Sampler(sources, seed, weights)
        sampler.load_state_dict(json.loads(json.dumps(state)))
        pieces += ids(sampler.next(count))
        state = sampler.state_dict()
    assert pieces == whole
    total = sum(weights.values())
    for drawn in range(1, len(whole) + 1):
        for name, weight in weights.items():
            count = sum(i.startswith(name) for i in whole[:drawn])
            assert abs(count - drawn * weight / total) < max(1.0, len(weights) - 1) + 1e-6
    for name, samples in sources.items():
        own = [i for i in whole if i.startswith(name)]
        for start in range(0, len(own), len(samples)):
            epoch = own[start : start + len(samples)]
            assert len(set(epoch)) == len(epoch)


def test_what_cannot_be_sampled_or_resumed() -> None:
    with pytest.raises(ValueError, match="empty: 'b'"):
        Sampler({"a": make("a", 2), "b": []}, seed=0)
    with pytest.raises(ValueError, match="do not fit the sources"):
        Sampler({"a": make("a", 2)}, seed=0, weights={"b": 1})
    with pytest.raises(ValueError, match="above 0"):
        Sampler({"a": make("a", 2)}, seed=0, weights={"a": 0})
    state = Sampler(make("a", 4), seed=0).state_dict()
    with pytest.raises(ValueError, match="seed changed"):
        Sampler(make("a", 4), seed=1).load_state_dict(state)
    with pytest.raises(ValueError, match="data or weights changed"):
        Sampler(make("b", 4), seed=0).load_state_dict(state)
    with pytest.raises(ValueError, match="an earlier version of mmr1"):
        Sampler(make("a", 4), seed=0).load_state_dict({**state, "order": 1})
