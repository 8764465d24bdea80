"""Assign turns of conversations to engines."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from mmr1.rollout.engine import Request


class TurnRouter:
    """Sends all turns of a prompt's conversations to one engine.

    So its caches serve the next turn, and the completions of a prompt share it.

    Args:
        engines: Their number.
    """

    def __init__(self, engines: int) -> None:
        self._open: list[dict[int, Request]] = [{} for _ in range(engines)]
        self._unsent: list[set[int]] = [set() for _ in range(engines)]
        self._engine_of: dict[tuple[str, str], int] = {}
        self._prompts = [0] * engines

    def __bool__(self) -> bool:
        return any(self._open)

    def add(self, requests: Mapping[int, Request]) -> None:
        for number, request in requests.items():
            engine = self._engine(request)
            self._open[engine][number] = request
            self._unsent[engine].add(number)

    def waiting(self) -> list[int]:
        """The engines that have something to sample."""
        return [engine for engine, of in enumerate(self._open) if of]

    def take(self, engine: int) -> dict[int, Request]:
        """Take the requests that an engine has not been sent."""
        taken = sorted(self._unsent[engine])
        self._unsent[engine] = set()
        return {number: self._open[engine][number] for number in taken}

    def finish(self, engine: int, numbers: Iterable[int]) -> None:
        for number in numbers:
            del self._open[engine][number]

    def lose(self, engine: int) -> None:
        """An engine was replaced: the new one has to be sent all of it."""
        self._unsent[engine] = set(self._open[engine])

    def _engine(self, request: Request) -> int:
        """The engine that has the prompt already, or else the one with the fewest prompts."""
        prompt = (request.prompt.sample.id, request.prompt.text)  # the same in all turns
        if prompt not in self._engine_of:
            engine = self._prompts.index(min(self._prompts))
            self._engine_of[prompt] = engine
            self._prompts[engine] += 1
        return self._engine_of[prompt]
