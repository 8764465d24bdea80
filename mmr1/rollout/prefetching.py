"""Media that are prepared while the engine samples."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import count
from typing import Any, Protocol

from mmr1.rollout.protocol import Engine, Finished, Probe, Request
from mmr1.types import Prompt
from mmr1.vision.prepare import MediaCache

CHUNK_BYTES = 64 * 2**20
"""Of media, as they are prepared: about what an engine on a GPU computes in its first step."""


class BoundedEngine(Engine, Protocol):
    """An engine that says when it should be given no more."""

    @property
    def is_full(self) -> bool:
        """True if the media of what waits in it fill the memory that they may have."""
        ...


class Prefetching:
    """An ``Engine`` over one that is handed requests as their media are ready.

    Requests whose media are prepared go first, so that the engine samples while other media are
    still being decoded. Prompts that share a medium go next to each other.

    Args:
        engine: Engine in this process or in another.
        media: Prepared media.
        together: Hand over at once all that one ``submit`` brings. What is sampled together then
            does not depend on how fast media were prepared, nor does the rounding of the results.
    """

    def __init__(self, engine: BoundedEngine, media: MediaCache, together: bool = False) -> None:
        self.engine = engine
        self._media, self._together = media, together
        self._tickets = count()
        self._waiting: dict[int, Request] = {}
        self._sent: dict[int, int] = {}  # own tickets by the engine's
        self._left: dict[int, int] = {}  # completions that are sampled, by own tickets
        # Weights and the end of the engine have nothing to do with media.
        self.load, self.close = engine.load, engine.close

    def submit(self, requests: Sequence[Request]) -> list[int]:
        self._media.prefetch(m for request in requests for m in request.prompt.media)
        tickets = [next(self._tickets) for _ in requests]
        self._waiting.update(zip(tickets, requests, strict=True))
        self._feed()
        return tickets

    def poll(self, wait_s: float = 0.0) -> list[Finished]:
        self._feed()
        return [self._own(e) for e in self.engine.poll(0.0 if self._waiting else wait_s)]

    def cancel(self) -> int:
        self._waiting, self._sent, self._left = {}, {}, {}
        return self.engine.cancel()

    def probe(self, prompts: Sequence[Prompt]) -> list[Probe]:
        return self.engine.probe(prompts)

    def _own(self, ended: Finished) -> Finished:
        ticket = self._sent[ended.ticket]
        self._left[ticket] -= 1
        if not self._left[ticket]:
            del self._sent[ended.ticket], self._left[ticket]
        return Finished(ticket, ended.index, ended.completion, ended.prompt)

    def _feed(self) -> None:
        """Hand over what is ready and one that is not, unless the engine has enough."""
        all_ready = True
        while all_ready and self._waiting and (self._together or not self.engine.is_full):
            chunk, all_ready = self._chunk()
            theirs = self.engine.submit([self._waiting[ticket] for ticket in chunk])
            for ticket, their in zip(chunk, theirs, strict=True):
                self._sent[their] = ticket
                self._left[ticket] = len(self._waiting.pop(ticket).seeds)

    def _chunk(self) -> tuple[list[int], bool]:
        """Tickets of about ``CHUNK_BYTES``, and whether their media are ready.

        Those that share a medium are in one chunk, so it is sent once. Without anything ready they
        are those with the media of the first request.
        """
        tickets = list(self._waiting)
        prompts = [self._waiting[ticket].prompt for ticket in tickets]
        ready = [self._together or all(map(self._media.is_ready, p.media)) for p in prompts]
        order = streaming_order(prompts, ready)
        if self._together:
            return [tickets[place] for place in order], True
        if not any(ready):
            first = prompts[order[0]].media
            return [tickets[place] for place in order if prompts[place].media == first], False
        chunk, held = list[int](), dict[str, int]()
        for place in order[: sum(ready)]:
            media: list[Any] = [self._media[m] for m in prompts[place].media]
            new = {m.digest: m.kept_bytes for m in media if m.digest not in held}
            if new and sum(held.values()) >= CHUNK_BYTES:
                break
            held |= new
            chunk.append(tickets[place])
        return chunk, True


def streaming_order(prompts: Sequence[Prompt], ready: Sequence[bool]) -> list[int]:
    """Indices of the prompts: the ready ones first, those with the same media together."""
    keys = [tuple(m.digest() for m in prompt.media) for prompt in prompts]
    first = {key: place for place, key in reversed(list(enumerate(keys)))}
    return sorted(range(len(prompts)), key=lambda i: (not ready[i], first[keys[i]], i))
