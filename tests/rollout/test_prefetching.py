"""Requests on their way to an engine: prepared once, the ready ones first, each answer in place."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import count
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from PIL import Image

from mmr1.rollout import prefetching
from mmr1.rollout.prefetching import Prefetching, streaming_order
from mmr1.rollout.protocol import Finished, Request, complete
from mmr1.types import Completion, MediaRef, Message, Prompt, Sample
from mmr1.vision.build import Preparers
from mmr1.vision.families.loading import load_family
from mmr1.vision.prepare import MediaCache, Medium
from tests.asking import asks


class Recorder:
    """An engine that answers with its prompt and keeps what it was handed."""

    is_full = False

    def __init__(self, media: MediaCache) -> None:
        self.media = media
        self.chunks: list[list[str]] = []
        self.versions: list[int] = []
        self.closed = False
        self._tickets = count()
        self._waiting: list[int] = []

    def load(self, weights: Mapping[str, torch.Tensor], version: int) -> None:
        self.versions.append(version)

    def close(self) -> None:
        self.closed = True

    def submit(self, requests: Sequence[Request]) -> list[int]:
        self.chunks.append([request.prompt.text for request in requests])
        for medium in (m for request in requests for m in request.prompt.media):
            self.media[medium]
        tickets = [next(self._tickets) for _ in requests]
        self._waiting += tickets
        return tickets

    def poll(self, wait_s: float = 0.0) -> list[Finished]:
        none = np.zeros(0, np.float32)
        answer = Completion(none.astype(np.int64), none, "", False, 0)
        waiting, self._waiting = self._waiting, []
        return [Finished(ticket, 0, answer) for ticket in waiting]

    def cancel(self) -> int:
        self._waiting = []
        return 0


def picture(folder: Path, name: int) -> MediaRef:
    path = folder / f"{name}.png"
    Image.new("RGB", (56, 56), (name, 0, 0)).save(path)
    return MediaRef("image", path)


def prompt(name: str, *media: MediaRef) -> Prompt:
    return Prompt(Sample(name, (Message("user", media),)), name, ())


def prepared(media: MediaRef) -> Medium:
    red = Image.open(media.path).getpixel((0, 0))[0]
    return Medium("image", torch.full((16, 4), float(red)), (1, 4, 4), 2, None, media.digest())


def test_what_is_ready_goes_first_and_shared_media_together(tmp_path):
    a, b, c = (picture(tmp_path, i) for i in range(3))
    prompts = [
        prompt("a1", a), prompt("text"), prompt("b1", b), prompt("a2", a), prompt("c", c),
        prompt("b2", b),
    ]  # fmt: skip
    cache = MediaCache(prepared)
    engine = Recorder(cache)
    cache[b], cache[c]
    requests = [asks(p, 1, i) for i, p in enumerate(prompts)]
    own = Prefetching(engine, cache)
    own.load({}, 3)
    groups = complete(own, requests)
    own.close()
    assert (engine.versions, engine.closed) == ([3], True)
    assert engine.chunks == [["text", "b1", "b2", "c"], ["a1", "a2"]]
    assert [g.prompt.text for g in groups] == [p.text for p in prompts]
    assert cache.processor_calls == 3

    cache = MediaCache(prepared)
    engine = Recorder(cache)
    complete(Prefetching(engine, cache, together=True), requests)
    # Whatever is ready: the order does not depend on it.
    assert engine.chunks == [["a1", "a2", "text", "b1", "b2", "c"]]


def test_a_full_engine_is_handed_no_more(tmp_path):
    cache = MediaCache(prepared)
    engine = Recorder(cache)
    engine.is_full = True
    own = Prefetching(engine, cache)
    own.submit([asks(prompt("text"), 1, 0)])
    assert own.poll() == []
    assert engine.chunks == []
    engine.is_full = False
    assert len(own.poll()) == 1


def test_those_that_are_ready_go_in_chunks_of_so_many_bytes(tmp_path, monkeypatch):
    """Each has 256 bytes; those that share one stay together, whatever else is in the chunk."""
    monkeypatch.setattr(prefetching, "CHUNK_BYTES", 512)
    refs = [picture(tmp_path, i) for i in range(4)]
    places = [0, 0, 1, 1, 1, 2, 3]
    prompts = [prompt("text"), *(prompt(f"{i}", refs[i]) for i in places)]
    cache = MediaCache(prepared)
    engine = Recorder(cache)
    for ref in refs:
        cache[ref]
    requests = [asks(p, 1, 0) for p in prompts]
    complete(Prefetching(engine, cache), requests)
    assert engine.chunks == [["text", "0", "0", "1", "1", "1"], ["2", "3"]]
    engine = Recorder(cache)
    complete(Prefetching(engine, cache, together=True), requests)
    assert engine.chunks == [["text", "0", "0", "1", "1", "1", "2", "3"]]


def test_the_order_is_a_permutation_that_keeps_equals_in_place(tmp_path):
    refs = [picture(tmp_path, i % 3) for i in range(9)]
    prompts = [prompt(str(i), ref) for i, ref in enumerate(refs)]
    assert streaming_order(prompts, [True] * 9) == [0, 3, 6, 1, 4, 7, 2, 5, 8]
    assert streaming_order(prompts, [False] * 9) == [0, 3, 6, 1, 4, 7, 2, 5, 8]
    assert streaming_order([], []) == []


def _load() -> object:
    return _elsewhere


def _elsewhere(media: MediaRef) -> Medium:
    """Named after the process that prepared it."""
    actual = prepared(media)
    if float(actual.patches[0, 0]) == 9:
        raise ValueError(f"{media} is not what it says")
    time.sleep(0.2)
    return Medium(
        actual.kind, actual.patches, actual.grid, actual.merge, float(os.getpid()), actual.digest
    )


def _fail(media: MediaRef) -> Medium:
    pytest.fail("this process prepared a medium itself")


def test_media_are_prepared_in_other_processes_each_once(tmp_path):
    refs = [picture(tmp_path, i) for i in range(6)]
    cache = MediaCache(_fail, workers=Preparers(_load, 2))
    cache.prefetch([*refs, *refs])
    assert cache.processor_calls == 6
    actual = [cache[ref] for ref in refs]
    assert all(cache.is_ready(ref) for ref in refs)
    assert os.getpid() not in {int(m.seconds_per_grid) for m in actual}
    for i, medium in enumerate(actual):
        assert torch.equal(medium.patches, torch.full((16, 4), float(i)))
    assert [cache[ref] is medium for ref, medium in zip(refs, actual, strict=True)] == [True] * 6
    assert cache.processor_calls == 6


def test_a_medium_that_cannot_be_prepared_elsewhere_says_so_each_time(tmp_path):
    cache = MediaCache(_fail, workers=Preparers(_load, 1))
    broken = picture(tmp_path, 9)
    for _ in range(2):
        with pytest.raises(ValueError, match=r"9\.png is not what it says"):
            cache[broken]
        assert "9.png is not what it says" in cache.failure(broken)


def test_what_was_checked_is_prepared_once_however_little_is_kept(tmp_path):
    with ThreadPoolExecutor(2) as pool:
        workers = SimpleNamespace(submit=lambda media: pool.submit(prepared, media))
        cache = MediaCache(_fail, 0, workers)
        refs = [picture(tmp_path, i) for i in range(4)]
        gone = MediaRef("image", tmp_path / "gone.png")
        cache.prefetch([*refs, gone])
        assert [cache.failure(ref) for ref in refs] == [None] * 4
        assert "No such file" in cache.failure(gone)
        assert [float(cache[ref].patches[0, 0]) for ref in refs] == [0, 1, 2, 3]
        assert cache.processor_calls == 4


def test_processes_that_a_thread_started_outlive_it(tmp_path):
    """A rollout thread ends before the evaluation that follows it."""
    preparers = Preparers(_load, 1)

    def prepare(i: int) -> int:
        return int(preparers.submit(picture(tmp_path, i)).result().seconds_per_grid)

    with ThreadPoolExecutor(1) as rollouts:
        process = rollouts.submit(prepare, 0).result()
    time.sleep(0.2)  # Linux kills what it kills at once
    assert prepare(1) == process


def _real(path: str) -> object:
    return load_family(path).prepare_media


def test_the_same_pixels_wherever_they_are_prepared(tiny_model, digit_samples):
    refs = [m for sample in digit_samples[:4] for m in sample.media]
    here = MediaCache(load_family(str(tiny_model)).prepare_media)
    elsewhere = MediaCache(_fail, workers=Preparers(partial(_real, str(tiny_model)), 1))
    for ref in refs:
        assert torch.equal(here[ref].patches, elsewhere[ref].patches)
        assert here[ref].grid == elsewhere[ref].grid
