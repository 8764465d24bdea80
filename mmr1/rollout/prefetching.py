"""A rollout engine whose media are prepared while it samples, once for engine and trainer.

Requests whose media are prepared go first, so that the engine samples while other media are still
being decoded. Prompts that share a medium go next to each other.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from mmr1.config import SamplingConfig
from mmr1.rollout.engine import PreparedRequest, Probe, Request, StreamingEngine
from mmr1.types import Prompt, RolloutGroup
from mmr1.vision.prepare import MediaCache


class PrefetchingEngine:
    """A ``RolloutEngine`` made of one that takes prepared media.

    Args:
        engine: In this process or in another.
        media: The trainer's prepared media.
        at_once: Hand over all requests together. What is sampled together then does not depend on
            how fast media were prepared, and neither does the rounding of the results.
    """

    def __init__(self, engine: StreamingEngine, media: MediaCache, at_once: bool = False) -> None:
        self.engine = engine
        self._media = media
        self._at_once = at_once
        # Weights and the end of the engine have nothing to do with media.
        self.load_weights = engine.load_weights
        self.close = engine.close

    def generate(self, requests: Sequence[Request], sampling: SamplingConfig) -> list[RolloutGroup]:
        self._media.prefetch(m for request in requests for m in request.prompt.media)
        ready = [all(map(self._media.is_ready, r.prompt.media)) for r in requests]
        order = streaming_order([r.prompt for r in requests], ready)
        streamed = self.engine.stream(self._chunks(requests, ready, order), sampling)
        groups = dict(zip(order, streamed, strict=True))
        return [groups[place] for place in range(len(requests))]

    def probe(self, prompts: Sequence[Prompt]) -> list[Probe]:
        return self.engine.probe([self._prepared(Request(p, 1, 0)) for p in prompts])

    def _chunks(
        self, requests: Sequence[Request], ready: Sequence[bool], order: Sequence[int]
    ) -> Iterator[list[PreparedRequest]]:
        """The requests that are ready in one chunk, then the others one by one."""
        first = len(order) if self._at_once else sum(ready)
        yield [self._prepared(requests[place]) for place in order[:first]]
        for place in order[first:]:
            yield [self._prepared(requests[place])]

    def _prepared(self, request: Request) -> PreparedRequest:
        return PreparedRequest(request, tuple(self._media[m] for m in request.prompt.media))


def streaming_order(prompts: Sequence[Prompt], ready: Sequence[bool]) -> list[int]:
    """Indices of the prompts: the ready ones first, those with the same media together."""
    keys = [tuple(m.digest() for m in prompt.media) for prompt in prompts]
    first = {key: place for place, key in reversed(list(enumerate(keys)))}
    return sorted(range(len(prompts)), key=lambda i: (not ready[i], first[keys[i]], i))
