"""What an engine works on at a time, of the prompts that have come."""

from __future__ import annotations

from itertools import chain

import torch
from hypothesis import given
from hypothesis import strategies as st

from mmr1.rollout.admission import AdmissionQueue
from mmr1.rollout.engine import PreparedRequest, Request
from mmr1.types import Message, Prompt, Sample
from mmr1.vision.prepare import PreparedMedia


def ready(name: str, tokens: int) -> PreparedRequest:
    """A prompt with one image of so many tokens, or with none."""
    image = PreparedMedia("image", torch.zeros(0), (1, 2, 2 * tokens), 2, None, name)
    prompt = Prompt(Sample(name, (Message("user", ()),)), name, ())
    return PreparedRequest(Request(prompt, 1, 0), (image,) if tokens else ())


def test_what_does_not_fit_lets_the_others_pass():
    given_ = [ready("a", 6), ready("video", 9), ready("b", 4), ready("text", 0), ready("c", 1)]
    queue = AdmissionQueue(iter([given_]), budget=10)
    assert [place for place, _ in queue.admit()] == [0, 2, 3]
    assert queue.admit() == []
    queue.finished(0)
    assert [place for place, _ in queue.admit()] == [4]
    queue.finished(2)
    assert [place for place, _ in queue.admit()] == [1]
    assert queue.empty
    assert [p.text for p in queue.prompts] == ["a", "video", "b", "text", "c"]


def test_a_full_queue_asks_for_no_more():
    asked = []

    def chunks():
        for i in range(10):
            asked.append(i)
            yield [ready(str(i), 10)]

    queue = AdmissionQueue(chunks(), budget=10)
    for _ in range(20):
        queue.admit()
    assert asked == [0, 1]  # one under way, one waiting


def test_a_medium_that_prompts_share_is_counted_once():
    queue = AdmissionQueue(iter([[ready("a", 6), ready("a", 6), ready("b", 6), ready("a", 6)]]), 10)
    assert [place for place, _ in queue.admit()] == [0, 1, 3]
    queue.finished(0)
    queue.finished(3)
    assert queue.admit() == []
    queue.finished(1)
    assert [place for place, _ in queue.admit()] == [2]


@given(st.lists(st.lists(st.integers(0, 30))), st.integers(1, 40), st.randoms())
def test_all_are_admitted_once_and_within_the_budget(chunks, budget, random):
    made = [[ready(f"{i}.{j}", n) for j, n in enumerate(ns)] for i, ns in enumerate(chunks)]
    queue = AdmissionQueue(iter(made), budget)
    under_way: dict[int, PreparedRequest] = {}
    seen: list[int] = []
    while under_way or not queue.empty:
        admitted = queue.admit()
        seen += [place for place, _ in admitted]
        under_way |= dict(admitted)
        used = [m.tokens for prepared in under_way.values() for m in prepared.media]
        assert sum(used) <= budget or len(used) == 1
        if under_way:
            place = random.choice(sorted(under_way))
            del under_way[place]
            queue.finished(place)
    assert sorted(seen) == list(range(len(list(chain(*made)))))
    assert [p.text for p in queue.prompts] == [r.request.prompt.text for r in chain(*made)]
