"""Admission of requests to a rollout engine: a bounded number of vision tokens is under way."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from mmr1.rollout.protocol import Request
from mmr1.vision.prepare import Medium


@dataclass(frozen=True, slots=True)
class Prepared:
    """A request with its media, in the order of the prompt's placeholders."""

    request: Request
    media: tuple[Medium, ...]


class AdmissionQueue:
    """Requests between those who submit and an engine.

    A request is admitted when its vision tokens fit beside those of the requests under way; one
    that does not fit lets smaller ones pass, and one that is larger than the budget is admitted
    when nothing else is under way. A medium that several requests share is counted once.

    Args:
        budget: Vision tokens under way.

    Attributes:
        under_way: The media of the admitted ones, by ticket.
    """

    def __init__(self, budget: int) -> None:
        self._budget = budget
        self._waiting: dict[int, Prepared] = {}
        self.under_way: dict[int, tuple[Medium, ...]] = {}
        self._held: Counter[str] = Counter()  # how many requests under way have a medium
        self._used = 0  # vision tokens of these media

    def __bool__(self) -> bool:
        """True if a request waits or is under way."""
        return bool(self._waiting or self.under_way)

    @property
    def is_full(self) -> bool:
        """True if as much waits as may be under way: the patches of more would fill the memory."""
        waiting = {m.digest: m.tokens for r in self._waiting.values() for m in r.media}
        return sum(waiting.values()) >= self._budget

    def add(self, ticket: int, prepared: Prepared) -> None:
        self._waiting[ticket] = prepared

    def admit(self) -> list[tuple[int, Prepared]]:
        """Admit what fits; each request with its ticket."""
        admitted = []
        for ticket, prepared in list(self._waiting.items()):
            new = {m.digest: m.tokens for m in prepared.media if not self._held[m.digest]}
            tokens = sum(new.values())
            if tokens == 0 or self._used == 0 or self._used + tokens <= self._budget:
                self.under_way[ticket] = prepared.media
                self._held.update(m.digest for m in prepared.media)
                self._used += tokens
                admitted.append((ticket, self._waiting.pop(ticket)))
        return admitted

    def finished(self, ticket: int) -> None:
        """Free the vision tokens of a request whose completions have all ended."""
        for medium in self.under_way.pop(ticket):
            self._held[medium.digest] -= 1
            if self._held[medium.digest] == 0:
                del self._held[medium.digest]
                self._used -= medium.tokens
