"""What an engine has under way, so that another can be asked for it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from itertools import count

from mmr1.rollout.protocol import Finished, Request


@dataclass
class _Open:
    """A request, with the indices of the completions that have not come."""

    request: Request
    left: list[int] = field(init=False)

    def __post_init__(self) -> None:
        self.left = list(range(len(self.request.seeds)))


class Outstanding:
    """Requests by ticket, from ``submit`` until their last completion.

    A completion that has come is never asked for again, so none is used twice.
    """

    def __init__(self) -> None:
        self._tickets = count()
        self._open: dict[int, _Open] = {}
        self._unsent: list[int] = []
        self._sent: dict[int, tuple[int, list[int]]] = {}  # by the engine's tickets

    def __bool__(self) -> bool:
        return bool(self._open)

    @property
    def is_sampled(self) -> bool:
        """True if the engine has something to sample."""
        return bool(self._sent)

    @property
    def completions(self) -> int:
        """Completions that have not come."""
        return sum(len(entry.left) for entry in self._open.values())

    def add(self, requests: Iterable[Request]) -> list[int]:
        """Take requests in; a ticket for each."""
        tickets = [self.enter(next(self._tickets), request) for request in requests]
        return tickets

    def enter(self, ticket: int, request: Request) -> int:
        """Take a request in under a ticket of the caller's own."""
        self._open[ticket] = _Open(request)
        self._unsent.append(ticket)
        return ticket

    def unsent(self) -> list[Request]:
        """Return the request for the engine, without the completions that have come."""
        return [
            replace(entry.request, seeds=tuple(entry.request.seeds[i] for i in entry.left))
            for entry in map(self._open.__getitem__, self._unsent)
        ]

    def sent(self, theirs: Sequence[int]) -> None:
        """The engine has what was unsent, under these tickets."""
        for ticket, own in zip(theirs, self._unsent, strict=True):
            self._sent[ticket] = own, list(self._open[own].left)
        self._unsent = []

    def take(self, finished: Iterable[Finished]) -> list[Finished]:
        """Return the work that the engine has finished, by the caller's tickets and indices."""
        return [self._taken(ended) for ended in finished]

    def lose(self) -> None:
        """Forget that anything was sent: the engine is another one, or has dropped it."""
        self._unsent = list(self._open)
        self._sent = {}

    def clear(self) -> None:
        self._open, self._unsent, self._sent = {}, [], {}

    def _taken(self, ended: Finished) -> Finished:
        own, indices = self._sent[ended.ticket]
        index, entry = indices[ended.index], self._open[own]
        entry.left.remove(index)
        if not entry.left:
            del self._open[own], self._sent[ended.ticket]
        return replace(ended, ticket=own, index=index)
