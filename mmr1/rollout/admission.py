"""Admission of prompts to a rollout engine: a bounded number of vision tokens is under way."""

from __future__ import annotations

from collections.abc import Iterator

from mmr1.rollout.engine import PreparedRequest
from mmr1.types import Prompt


class AdmissionQueue:
    """Prompts between a feeder and an engine.

    A prompt is admitted when its vision tokens fit beside those of the prompts under way; one that
    does not fit lets smaller ones pass, and one that is larger than the budget is admitted when
    nothing else is under way.
    While as much again waits, the feeder is not asked for more, so the patches of about twice the
    budget are in the engine, or those of one chunk if it is larger.

    Args:
        chunks: Prepared requests; an empty chunk says that none has come yet.
        budget: Vision tokens under way.

    Attributes:
        prompts: All that came, in order.
        under_way: Vision tokens of the admitted ones, by place.
    """

    def __init__(self, chunks: Iterator[list[PreparedRequest]], budget: int) -> None:
        self.prompts: list[Prompt] = []
        self._chunks = chunks
        self._budget = budget
        self._waiting: dict[int, PreparedRequest] = {}
        self.under_way: dict[int, int] = {}
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
        if not self._ended and sum(map(vision_tokens, self._waiting.values())) < self._budget:
            chunk = next(self._chunks, None)
            self._ended = chunk is None
            for prepared in chunk or ():
                self._waiting[len(self.prompts)] = prepared
                self.prompts.append(prepared.request.prompt)
        admitted, used = [], sum(self.under_way.values())
        for place, prepared in list(self._waiting.items()):
            tokens = vision_tokens(prepared)
            if tokens == 0 or used == 0 or used + tokens <= self._budget:
                self.under_way[place] = tokens
                used += tokens
                admitted.append((place, self._waiting.pop(place)))
        return admitted

    def finished(self, place: int) -> None:
        """Free the vision tokens of a prompt whose completions have all ended."""
        del self.under_way[place]


def vision_tokens(prepared: PreparedRequest) -> int:
    return sum(medium.tokens for medium in prepared.media)
