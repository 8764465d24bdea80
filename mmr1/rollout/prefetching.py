"""Requests on their way to an engine, their media prepared once for engine and trainer alike.

What can start at once goes first, so that the engine samples while other media are still being
decoded; prompts that share a medium go next to each other.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from mmr1.config import SamplingConfig
from mmr1.rollout.engine import PreparedRequest, Probe, Request, StreamingEngine
from mmr1.types import Prompt, RolloutGroup
from mmr1.vision.prepare import MediaCache

if TYPE_CHECKING:
    import torch


class PrefetchingEngine:
    """A ``RolloutEngine`` made of one that takes prepared media.

    Args:
        engine: In this process or in another.
        media: Where the trainer has its prepared media from.
        at_once: Hand over all requests together. What is sampled together then does not depend on
            how fast media were prepared, and neither does the rounding of the results.
    """

    def __init__(self, engine: StreamingEngine, media: MediaCache, at_once: bool = False) -> None:
        self.engine = engine
        self._media = media
        self._at_once = at_once

    def generate(self, requests: Sequence[Request], sampling: SamplingConfig) -> list[RolloutGroup]:
        self._media.prefetch(m for request in requests for m in request.prompt.media)
        ready = [all(map(self._media.is_ready, r.prompt.media)) for r in requests]
        order = streaming_order([r.prompt for r in requests], ready)
        found = self.engine.stream(self._chunks(requests, ready, order), sampling)
        groups = dict(zip(order, found, strict=True))
        return [groups[place] for place in range(len(requests))]

    def load_weights(self, weights: Mapping[str, torch.Tensor], version: int) -> None:
        self.engine.load_weights(weights, version)

    def probe(self, prompts: Sequence[Prompt]) -> list[Probe]:
        return self.engine.probe([self._ready(Request(p, 1, 0)) for p in prompts])

    def close(self) -> None:
        self.engine.close()

    def _chunks(
        self, requests: Sequence[Request], ready: Sequence[bool], order: Sequence[int]
    ) -> Iterator[list[PreparedRequest]]:
        """What is ready in one chunk, then the others one by one as they become so."""
        first = len(order) if self._at_once else sum(ready)
        yield [self._ready(requests[place]) for place in order[:first]]
        for place in order[first:]:
            yield [self._ready(requests[place])]

    def _ready(self, request: Request) -> PreparedRequest:
        return PreparedRequest(request, tuple(self._media[m] for m in request.prompt.media))


def streaming_order(prompts: Sequence[Prompt], ready: Sequence[bool]) -> list[int]:
    """The places of the prompts: the ready ones first, those with the same media together."""
    keys = [tuple(m.digest() for m in prompt.media) for prompt in prompts]
    first = {key: place for place, key in reversed(list(enumerate(keys)))}
    return sorted(range(len(prompts)), key=lambda i: (not ready[i], first[keys[i]], i))
