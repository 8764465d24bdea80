"""What an engine works on at a time, of the prompts that have come."""

from __future__ import annotations

from itertools import chain, count

import torch
from hypothesis import given
from hypothesis import strategies as st

from mmr1.rollout.admission import AdmissionQueue, Prepared
from mmr1.types import Message, Prompt, Sample
from mmr1.vision.prepare import Medium
from tests.asking import asks


def ready(name: str, tokens: int) -> Prepared:
    """A prompt with one image of so many tokens, or with none."""
    image = Medium("image", torch.zeros(0), (1, 2, 2 * tokens), 2, None, name)
    prompt = Prompt(Sample(name, (Message("user", ()),)), name, ())
    return Prepared(asks(prompt, 1, 0), (image,) if tokens else ())


def queue_of(*given_: Prepared, budget: int) -> AdmissionQueue:
    queue = AdmissionQueue(budget)
    for ticket, prepared in enumerate(given_):
        queue.add(ticket, prepared)
    return queue


def test_what_does_not_fit_lets_the_others_pass():
    given_ = [ready("a", 6), ready("video", 9), ready("b", 4), ready("text", 0), ready("c", 1)]
    queue = queue_of(*given_, budget=10)
    assert [place for place, _ in queue.admit()] == [0, 2, 3]
    assert queue.admit() == []
    queue.finished(0)
    assert [place for place, _ in queue.admit()] == [4]
    queue.finished(2)
    assert [place for place, _ in queue.admit()] == [1]
    for place in (3, 4, 1):
        assert queue
        queue.finished(place)
    assert not queue


def test_a_queue_in_which_the_budget_waits_is_full():
    queue = queue_of(ready("a", 10), budget=10)
    assert queue.is_full
    queue.admit()
    assert not queue.is_full
    queue.add(1, ready("b", 6))
    queue.add(2, ready("b", 6))  # the same picture
    assert not queue.is_full
    queue.add(3, ready("c", 4))
    assert queue.is_full


def test_a_medium_that_prompts_share_is_counted_once():
    shared = ready("a", 6)
    queue = queue_of(shared, shared, ready("b", 6), shared, budget=10)
    assert [place for place, _ in queue.admit()] == [0, 1, 3]
    queue.finished(0)
    queue.finished(3)
    assert queue.admit() == []
    queue.finished(1)
    assert [place for place, _ in queue.admit()] == [2]


@given(st.lists(st.lists(st.integers(0, 30))), st.integers(1, 40), st.randoms())
def test_all_are_admitted_once_and_within_the_budget(batches, budget, random):
    made = [[ready(f"{i}.{j}", n) for j, n in enumerate(ns)] for i, ns in enumerate(batches)]
    queue, numbers = AdmissionQueue(budget), count()
    under_way: dict[int, Prepared] = {}
    seen: list[int] = []
    while made or queue:
        for prepared in made.pop(0) if made else ():
            queue.add(next(numbers), prepared)
        admitted = queue.admit()
        seen += [place for place, _ in admitted]
        under_way |= dict(admitted)
        used = [m.tokens for prepared in under_way.values() for m in prepared.media]
        assert sum(used) <= budget or len(used) == 1
        if under_way:
            place = random.choice(sorted(under_way))
            del under_way[place]
            queue.finished(place)
    assert sorted(seen) == list(range(len(list(chain(*batches)))))
