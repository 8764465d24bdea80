"""Requests and their groups, for tests of engines."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from mmr1.config import SamplingConfig
from mmr1.rollout.protocol import Engine, Request, complete
from mmr1.types import Completion, Prompt, RolloutGroup


def asks(prompt: Prompt, n: int, seed: int, max_tokens: int | None = None) -> Request:
    """A request for ``n`` completions; its distribution is that of :func:`completed`."""
    return Request(prompt, tuple(range(seed, seed + n)), SamplingConfig(), max_tokens)


def completed(
    engine: Engine, requests: Sequence[Request], sampling: SamplingConfig
) -> list[RolloutGroup]:
    """The groups of requests, all sampled from one distribution."""
    return complete(engine, [replace(request, sampling=sampling) for request in requests])


class Numbered:
    """An engine whose requests, each of one completion, have numbers of the test's own."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._numbers: dict[int, int] = {}

    def advance(
        self, requests: Mapping[int, Request], wait_s: float = 0.0
    ) -> dict[int, Completion]:
        """Take requests in and sample on; what has ended."""
        tickets = self._engine.submit(list(requests.values())) if requests else []
        self._numbers.update(zip(tickets, requests, strict=True))
        return {self._numbers.pop(e.ticket): e.completion for e in self._engine.poll(wait_s)}
