"""Admission of prompts to a rollout engine: a bounded number of vision tokens is under way."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from mmr1.rollout.engine import PreparedRequest
from mmr1.types import Prompt
from mmr1.vision.prepare import Medium


class AdmissionQueue:
    """Prompts between a feeder and an engine.

    A prompt is admitted when its vision tokens fit beside those of the prompts under way; one that
    does not fit lets smaller ones pass, and one that is larger than the budget is admitted when
    nothing else is under way. A medium that several prompts share is counted once.
    While as much again waits, the feeder is not asked for more, so the patches of about twice the
    budget are in the engine, or those of one chunk if it is larger.

    Args:
        chunks: Prepared requests; an empty chunk says that none has come yet.
        budget: Vision tokens under way.

    Attributes:
        prompts: All that came, in order.
        under_way: The media of the admitted ones, by place.
    """

    def __init__(self, chunks: Iterator[list[PreparedRequest]], budget: int) -> None:
        self.prompts: list[Prompt] = []
        self._chunks = chunks
        self._budget = budget
        self._waiting: dict[int, PreparedRequest] = {}
        self.under_way: dict[int, tuple[Medium, ...]] = {}
        self._held: Counter[str] = Counter()  # how many prompts under way have a medium
        self._used = 0  # vision tokens of these media
        self._ended = False

    @property
    def empty(self) -> bool:
        """True if every request has come and been admitted."""
        return self._ended and not self._waiting

    def admit(self) -> list[tuple[int, PreparedRequest]]:
        """Read a chunk and admit what fits.

        Returns:
            Each admitted request with its index in ``prompts``.
        """
        waiting = {m.digest: m.tokens for r in self._waiting.values() for m in r.media}
        if not self._ended and sum(waiting.values()) < self._budget:
            chunk = next(self._chunks, None)
            self._ended = chunk is None
            for prepared in chunk or ():
                self._waiting[len(self.prompts)] = prepared
                self.prompts.append(prepared.request.prompt)
        admitted = []
        for place, prepared in list(self._waiting.items()):
            new = {m.digest: m.tokens for m in prepared.media if not self._held[m.digest]}
            tokens = sum(new.values())
            if tokens == 0 or self._used == 0 or self._used + tokens <= self._budget:
                self.under_way[place] = prepared.media
                self._held.update(m.digest for m in prepared.media)
                self._used += tokens
                admitted.append((place, self._waiting.pop(place)))
        return admitted

    def finished(self, place: int) -> None:
        """Free the vision tokens of a prompt whose completions have all ended."""
        for medium in self.under_way.pop(place):
            self._held[medium.digest] -= 1
            if self._held[medium.digest] == 0:
                del self._held[medium.digest]
                self._used -= medium.tokens
