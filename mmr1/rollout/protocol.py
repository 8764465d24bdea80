"""One protocol for everything that samples completions: submit, poll, load, cancel.

What is submitted in one call runs together, so results do not depend on when ``poll`` is called.
Nobody asks an engine for its name: what differs between engines is in its ``Abilities``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from typing import Any, Protocol

from mmr1.config import SamplingConfig
from mmr1.rollout import engine as engines
from mmr1.rollout.engine import PreparedRequest, RolloutEngine, TurnEngine
from mmr1.types import Completion, Prompt, RolloutGroup
from mmr1.vision.prepare import MediaCache


@dataclass(frozen=True, slots=True)
class Request:
    """Sample a completion of one prompt for each seed, from one distribution."""

    prompt: Prompt
    seeds: tuple[int, ...]
    sampling: SamplingConfig


@dataclass(frozen=True, slots=True)
class Finished:
    """The completion of seed ``index`` of a ticket."""

    ticket: int
    index: int
    completion: Completion


class Engine(Protocol):
    """Samples completions with the weights that it was last given."""

    def submit(self, requests: Sequence[Request]) -> list[int]:
        """Take requests in; a ticket for each."""
        ...

    def poll(self, wait_s: float = 0.0) -> list[Finished]:
        """Sample on until something has finished, or for so many seconds; what has finished."""
        ...

    def load(self, weights: Any, version: int) -> None:
        """Take new weights. Completions under way continue with them."""
        ...

    def cancel(self) -> int:
        """Drop all that is under way; returns how many of its tokens were sampled."""
        ...


def complete(engine: Engine, requests: Sequence[Request]) -> list[RolloutGroup]:
    """Submit, wait for all, and put them in order: for whoever has nothing else to do."""
    places = {ticket: place for place, ticket in enumerate(engine.submit(requests))}
    rows = [dict[int, Completion]() for _ in requests]
    missing = sum(len(request.seeds) for request in requests)
    while missing:
        for ended in engine.poll(1.0):
            rows[places[ended.ticket]][ended.index] = ended.completion
            missing -= 1
    return [
        RolloutGroup(request.prompt, tuple(row[i] for i in range(len(request.seeds))))
        for request, row in zip(requests, rows, strict=True)
    ]


def runs(seeds: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Seeds cut where they do not follow one another: ``(first, number)`` of each run."""
    first = 0
    for place in range(1, len(seeds) + 1):
        if place == len(seeds) or seeds[place] != seeds[place - 1] + 1:
            yield seeds[first], place - first
            first = place


class OfBatches:
    """An ``Engine`` made of one that samples a batch to its end."""

    def __init__(self, engine: RolloutEngine) -> None:
        self._engine = engine
        self.load = engine.load_weights
        self._numbers = count()
        self._waiting: list[list[tuple[int, Request]]] = []

    def submit(self, requests: Sequence[Request]) -> list[int]:
        numbered = [(next(self._numbers), request) for request in requests]
        if numbered:
            self._waiting.append(numbered)
        return [ticket for ticket, _ in numbered]

    def poll(self, wait_s: float = 0.0) -> list[Finished]:
        if not self._waiting:
            return []
        batch = self._waiting.pop(0)
        requests = [engines.Request(r.prompt, n, s) for _, r in batch for s, n in runs(r.seeds)]
        groups = self._engine.generate(requests, batch[0][1].sampling)
        ended = (completion for group in groups for completion in group.completions)
        return [Finished(t, i, next(ended)) for t, r in batch for i in range(len(r.seeds))]

    def cancel(self) -> int:
        self._waiting = []
        return 0


class Turning(TurnEngine, Protocol):
    """A ``TurnEngine`` that takes weights."""

    def load_weights(self, weights: Any, version: int) -> None: ...


class OfTurns:
    """An ``Engine`` made of a ``TurnEngine``."""

    def __init__(self, engine: Turning, media: MediaCache) -> None:
        self._engine, self._media = engine, media
        self.load = engine.load_weights
        self._tickets, self._numbers = count(), count()
        self._new: dict[int, engines.Request] = {}
        self._places: dict[int, tuple[int, int]] = {}
        self._sampling = SamplingConfig()

    def submit(self, requests: Sequence[Request]) -> list[int]:
        tickets = []
        for request in requests:
            tickets.append(ticket := next(self._tickets))
            self._sampling = request.sampling
            for index, seed in enumerate(request.seeds):
                self._new[number := next(self._numbers)] = engines.Request(request.prompt, 1, seed)
                self._places[number] = ticket, index
        return tickets

    def poll(self, wait_s: float = 0.0) -> list[Finished]:
        media = self._media
        prepared: Mapping[int, PreparedRequest] = {
            number: PreparedRequest(r, tuple(media[m] for m in r.prompt.media))
            for number, r in self._new.items()
        }
        self._new = {}
        ended = self._engine.advance(prepared, self._sampling, wait_s)
        return [Finished(*self._places.pop(n), c) for n, c in ended.items()]

    def cancel(self) -> int:
        self._new, self._places = {}, {}
        return self._engine.abandon()
