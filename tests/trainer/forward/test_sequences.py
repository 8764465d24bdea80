"""The model inputs of a batch."""

from __future__ import annotations

import weakref
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from threading import Barrier

import numpy as np
import pytest
import torch

from mmr1.config import ModelConfig
from mmr1.data.record import read_records
from mmr1.data.responses import group_of_responses
from mmr1.rollout.distribution import Distribution
from mmr1.trainer.forward.sequences import (
    GroupInput,
    ModelInputs,
    Observed,
    completion_batch,
    completion_mask,
    group_input,
    length_mask,
    sampled_mask,
)
from mmr1.trainer.models.loading import load_model
from mmr1.trainer.models.packed_model import PackedModel
from mmr1.types import Completion, MediaRef, RolloutGroup, Span
from mmr1.vision.families.loading import load_family
from mmr1.vision.features import FeatureCache
from mmr1.vision.prepare import MediaCache, Medium


class Threads:
    """Prepare two media at once, or fail."""

    def __init__(self, prepare) -> None:
        self._prepare = prepare
        self._pool = ThreadPoolExecutor(2)
        self._both = Barrier(2)

    def submit(self, media: MediaRef) -> Future[Medium]:
        return self._pool.submit(self._run, media)

    def _run(self, media: MediaRef) -> Medium:
        self._both.wait(timeout=20)
        return self._prepare(media)


def model_of(path: Path, media: MediaCache, features: FeatureCache | None = None) -> PackedModel:
    """One whose micro-batches have a group each."""
    model = load_model(ModelConfig(path=str(path), dtype="float32")).requires_grad_(False)
    inputs = ModelInputs(load_family(str(path)), media)
    return PackedModel(
        model,
        inputs,
        distribution=Distribution(forbidden=inputs.family.forbidden_ids),
        budget=1,
        features=features,
    )


def groups_of(path: Path, records: Path, *kinds: str) -> list[RolloutGroup]:
    family = load_family(str(path))
    samples = [s for s in read_records(records) if s.id.startswith(kinds)]
    return [group_of_responses(family, family.render_prompt(s), ["it is one"]) for s in samples]


def test_media_of_neighbouring_micro_batches_are_prepared_at_once(tiny_model, mixed):
    prepare = load_family(str(tiny_model)).prepare_media
    media = MediaCache(prepare, workers=Threads(prepare))
    groups = groups_of(tiny_model, mixed, "0-1", "2-9")
    model = model_of(tiny_model, media)
    first, second = model.batches(groups)
    assert media.processor_calls == 0
    assert [len(g.media) for g in (*first.groups, *second.groups)] == [1, 1]
    model.groups_of(first)
    assert media.processor_calls == 2
    model.groups_of(second)
    assert media.processor_calls == 2


@pytest.mark.parametrize("frozen", [False, True])
def test_no_more_patches_are_held_than_the_cache_may_keep(tiny_model, mixed, frozen):
    """Those of a micro-batch, or what is kept of those before; the numbers are the same."""
    prepare, made = load_family(str(tiny_model)).prepare_media, []

    def counting(medium: MediaRef) -> Medium:
        prepared = prepare(medium)
        made.append(weakref.ref(prepared.patches))
        return prepared

    groups = groups_of(tiny_model, mixed, "0-1", "1-", "2-9", "3-")
    features = FeatureCache() if frozen else None
    model = model_of(tiny_model, MediaCache(counting, max_bytes=1), features)
    batches = model.batches(groups)
    assert not made
    for batch in batches:
        model.token_scores(batch)
        assert sum(held() is not None for held in made) <= 1
    shown = [m.digest() for g in groups for m in g.prompt.media]
    assert len(made) == len(set(shown) if frozen else shown) > 3
    again = model.scores(groups).logprobs
    assert len(made) == (len(set(shown)) if frozen else 2 * len(shown))
    whole = model_of(tiny_model, MediaCache(prepare)).scores(groups).logprobs
    assert torch.equal(again, whole)


def test_a_medium_that_is_not_what_its_header_says_is_an_error(tiny_model, mixed):
    prepare = load_family(str(tiny_model)).prepare_media

    def other(medium: MediaRef) -> Medium:
        prepared = prepare(medium)
        t, h, w = prepared.grid
        return replace(prepared, grid=(t, w * h, 1))

    model = model_of(tiny_model, MediaCache(other))
    with pytest.raises(ValueError, match="by its header it has"):
        model.scores(groups_of(tiny_model, mixed, "0-1"))


def observed_group() -> GroupInput:
    """Completions of 5, 2 and 4 tokens, the first and the last with an environment.

    A model's own forward takes for the first a number for each of its tokens and two rows of
    pixels, one for each of its runs of 3 and 2 tokens.
    """
    experts = [torch.full((tokens, 1, 2), tokens) for tokens in (3, 4, 1, 3)]
    runs = tuple(
        (n, {"types": torch.full((1, n), n), "pixels": torch.full((1, 4), float(n))})
        for n in (3, 2)
    )
    first = Observed(length_mask([3, 5])[0], torch.arange(3, 8)[None], (), ((3, 0), (2, 0)), runs)
    last = Observed(torch.ones(4).bool(), torch.arange(3, 7)[None], (), ((4, 0),))
    return GroupInput(
        prompt_ids=torch.arange(3),
        prompt_positions=torch.arange(3)[None],
        completion_start=3,
        media=(),
        completions=(torch.arange(10, 15), torch.arange(20, 22), torch.arange(30, 34)),
        observed=(first, None, last),
        arguments={"types": torch.zeros(1, 3)},
        experts=(experts[0], tuple(experts[1:])),
    )


def test_piece_cuts_arguments_of_tokens_and_no_others():
    group = observed_group()
    tokens, arguments = group.piece(0, 4)
    assert tokens == 4
    assert arguments["types"].tolist() == [[3, 3, 3, 2]]
    assert arguments["pixels"].tolist() == [[3.0] * 4, [2.0] * 4]
    assert group.piece(1, 2) == (2, {})
    prompt, (tokens, cut) = group.pieces(0, 5)
    assert prompt == (3, group.arguments)
    assert (tokens, cut["types"].tolist()) == (5, [[3, 3, 3, 2, 2]])


def test_selected_completions_keep_what_is_theirs():
    """Their environment and their experts; the prompt's stay."""
    group = observed_group()
    chosen = group.select([2, 0])
    assert [row.tolist() for row in chosen.completions] == [[30, 31, 32, 33], [*range(10, 15)]]
    assert chosen.observed == (group.observed[2], group.observed[0])
    assert chosen.experts[0] is group.experts[0]
    assert chosen.experts[1] == (group.experts[1][2], group.experts[1][0])
    plain = replace(group, observed=(), experts=None).select([1])
    assert (plain.observed, plain.experts) == ((), None)


def test_forks_become_completions_with_their_own_parts():
    unforked = observed_group().unforked()
    assert [row.tolist() for row in unforked.completions] == [
        *([10, 11, 12], [13, 14], [20, 21], [30, 31, 32, 33])
    ]
    first, second, none, last = unforked.observed
    assert none is None
    assert (first.sampled.tolist(), second.sampled.tolist()) == ([True] * 3, [False] * 2)
    assert (first.positions.tolist(), second.positions.tolist()) == ([[3, 4, 5]], [[6, 7]])
    assert [[tokens for tokens, _ in part.seen] for part in (first, second, last)] == [[3], [2], []]
    assert (first.sequences, second.sequences) == (((3, 0),), ((2, 0),))
    whole = replace(observed_group(), observed=(None,) * 3)
    assert whole.unforked() is whole


def test_positions_of_a_completion_go_on_from_the_prompt():
    group = observed_group()
    assert group.completion_positions(0) is group.observed[0].positions
    assert group.completion_positions(1).tolist() == [[3, 4]]
    rows = replace(group, prompt_positions=torch.arange(3).expand(3, -1), observed=())
    assert rows.completion_positions(2).tolist() == [[3, 4, 5, 6]] * 3


def test_batch_of_completions_marks_sampled_tokens():
    ids, mask = completion_batch([observed_group(), replace(observed_group(), observed=())])
    assert ids.tolist()[:3] == [[*range(10, 15)], [20, 21, 0, 0, 0], [30, 31, 32, 33, 0]]
    assert mask.sum(1).tolist() == [3, 2, 4, 5, 2, 4]
    assert mask[0].tolist() == [True] * 3 + [False] * 2


def completion(*spans: Span, tokens: int = 4, experts: int | None = None) -> Completion:
    routed = (
        None if experts is None else tuple(np.full((n, 1, 2), experts) for n in (3, tokens - 1))
    )
    ids = np.arange(tokens)
    return Completion(ids, np.zeros(tokens), "", False, 0, spans, routed_experts=routed)


def test_sampled_tokens_are_those_of_the_policys_spans(tiny_model, mixed):
    spans = (Span("assistant", 1, ""), Span("tool", 2, ""), Span("assistant", 1, ""))
    asked = completion(*spans)
    assert sampled_mask(asked).tolist() == [True, False, False, True]
    assert sampled_mask(completion()).tolist() == [True] * 4
    group = groups_of(tiny_model, mixed, "0-1")[0]
    mask = completion_mask([replace(group, completions=(completion(tokens=2), asked))])
    assert mask.tolist() == [[True, True, False, False], [True, False, False, True]]


def test_experts_are_known_only_if_all_completions_have_them(tiny_model, mixed):
    """Those of the prompt are the first completion's."""
    group = groups_of(tiny_model, mixed, "0-1")[0]
    family = load_family(str(tiny_model))

    def experts_of(*completions: Completion):
        inputs = replace(group, completions=completions)
        return group_input(family, MediaCache(family.prepare_media), inputs).experts

    prompt, chosen = experts_of(completion(experts=5), completion(tokens=2, experts=6))
    assert prompt.unique().tolist() == [5]
    assert [own.unique().tolist() for own in chosen] == [[5], [6]]
    assert [len(own) for own in chosen] == [3, 1]
    assert experts_of(completion(experts=5), completion()) is None
    assert experts_of(completion(), completion()) is None
