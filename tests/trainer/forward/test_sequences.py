"""The model inputs of a batch."""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor
from threading import Barrier

import numpy as np

from mmr1.data.record import read_records
from mmr1.trainer.forward.sequences import ModelInputs
from mmr1.types import Completion, MediaRef, RolloutGroup
from mmr1.vision.families.loading import load_family
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


def test_media_of_different_groups_are_prepared_at_once(tiny_model, mixed):
    family = load_family(str(tiny_model))
    images = [s for s in read_records(mixed) if s.id.startswith(("0-1", "2-9"))]
    assert len(images) == 2
    completion = Completion(np.array([5]), np.zeros(1, np.float32), "", False, 0)
    groups = [RolloutGroup(family.render_prompt(s), (completion,)) for s in images]
    media = MediaCache(family.prepare_media, workers=Threads(family.prepare_media))
    inputs = ModelInputs(family, media).of(groups)
    assert [len(group.media) for group in inputs] == [1, 1]
