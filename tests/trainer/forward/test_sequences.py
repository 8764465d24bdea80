"""The model inputs of a batch."""

from __future__ import annotations

import weakref
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from threading import Barrier

import pytest
import torch

from mmr1.config import ModelConfig
from mmr1.data.record import read_records
from mmr1.data.responses import group_of_responses
from mmr1.trainer.forward.sequences import ModelInputs
from mmr1.trainer.models.loading import load_model
from mmr1.trainer.models.packed_model import PackedModel
from mmr1.types import MediaRef, RolloutGroup
from mmr1.vision.families.loading import load_family
from mmr1.vision.features import FeatureCache
from mmr1.vision.prepare import MediaCache, PreparedMedia


class Threads:
    """Prepare two media at once, or fail."""

    def __init__(self, prepare) -> None:
        self._prepare = prepare
        self._pool = ThreadPoolExecutor(2)
        self._both = Barrier(2)

    def submit(self, media: MediaRef) -> Future[PreparedMedia]:
        return self._pool.submit(self._run, media)

    def _run(self, media: MediaRef) -> PreparedMedia:
        self._both.wait(timeout=20)
        return self._prepare(media)


def model_of(path: Path, media: MediaCache, features: FeatureCache | None = None) -> PackedModel:
    """One whose micro-batches have a group each."""
    model = load_model(ModelConfig(path=str(path), dtype="float32")).requires_grad_(False)
    inputs = ModelInputs(load_family(str(path)), media)
    return PackedModel(model, inputs, temperature=1.0, budget=1, features=features)


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

    def counting(medium: MediaRef) -> PreparedMedia:
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

    def other(medium: MediaRef) -> PreparedMedia:
        prepared = prepare(medium)
        t, h, w = prepared.grid
        return replace(prepared, grid=(t, w * h, 1))

    model = model_of(tiny_model, MediaCache(other))
    with pytest.raises(ValueError, match="by its header it has"):
        model.scores(groups_of(tiny_model, mixed, "0-1"))
