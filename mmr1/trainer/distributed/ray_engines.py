"""Several rollout engines behind the protocol of a single one."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import count
from typing import Concatenate, ParamSpec, TypeVar

from mmr1.logs import report_fault
from mmr1.rollout.outstanding import Outstanding
from mmr1.rollout.protocol import Finished, Probe, Request
from mmr1.trainer.distributed import ray_calls
from mmr1.trainer.distributed.colocation import Colocation
from mmr1.trainer.distributed.engine_actor import Engine
from mmr1.trainer.distributed.errors import TransferError, WorkerLostError
from mmr1.trainer.distributed.ray_calls import Actor, Call
from mmr1.trainer.models.policy import SentWeights
from mmr1.types import Prompt

logger = logging.getLogger(__name__)
Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")
outcomes = partial(ray_calls.outcomes, limit="rollout.timeout_s")


class RayEngines:
    """Several engines as one: each gets its share of the prompts.

    An engine that dies or hangs is replaced; the ranks send the weights that it had once more, to
    all engines, and what was under way is asked for again.

    Args:
        replace: Ends an actor and starts another in its place, by its index.
        timeout_s: Longest time that a call may take.
        restarts: How often, in all, an engine is replaced.

    Attributes:
        restarted: How often one was.
        colocation: Where engines share the ranks' GPUs. Those are not replaced: beside a rank, a
            new one would not find the memory that it needs to start.
    """

    def __init__(
        self,
        engines: Sequence[Actor[Engine]],
        replace: Callable[[int, Actor[Engine]], Actor[Engine]],
        timeout_s: float,
        restarts: int,
    ) -> None:
        self.restarted = 0
        self._tickets = count()
        self._router = Router(len(engines))
        self._outstanding = [Outstanding() for _ in engines]
        self._sending: dict[int, Call[list[int]]] = {}  # by engine, as what follows
        self._asked: dict[int, Call[list[Finished]]] = {}
        self._ended: list[Finished] = []  # for the next poll
        self._engines = list(engines)
        self._replace = replace
        self._timeout_s = timeout_s
        self._restarts = restarts
        self.colocation: Colocation | None = None
        self._weights: SentWeights | None = None
        self._version = 0

    def submit(self, requests: Sequence[Request]) -> list[int]:
        if self.colocation is not None:
            self.colocation.sample()
        tickets = [next(self._tickets) for _ in requests]
        loads = [outstanding.completions for outstanding in self._outstanding]
        for ticket, request, i in zip(
            tickets, requests, self._router.route(requests, loads), strict=True
        ):
            self._outstanding[i].enter(ticket, request)
        self._send_unsent()
        return tickets

    def poll(self, wait_s: float = 0.0) -> list[Finished]:
        """Return work that engines have finished, of those that answer first all that they have."""
        ended, self._ended = self._ended, []
        if not ended and any(self._outstanding):
            self._send_unsent()
            ended = self._sample_on()
        return ended

    def cancel(self) -> int:
        for outstanding in self._outstanding:
            outstanding.clear()
        self._sending, self._asked, self._ended = {}, {}, []
        every = range(len(self._engines))
        return sum(self._ask(every, lambda i, engine: engine.start(Engine.cancel)))

    def _send_unsent(self) -> None:
        """Send each engine what it has not got; they take it in at the same time."""
        for i, outstanding in enumerate(self._outstanding):
            if requests := outstanding.unsent():
                self._sending[i] = self._engines[i].start(Engine.submit, requests)
        tickets, lost = outcomes(self._sending, self._timeout_s)
        self._sending = {}
        for i, own in tickets.items():
            self._outstanding[i].sent(own)
        if lost:
            self._begin_again(lost)

    def _sample_on(self) -> list[Finished]:
        """Ask idle engines that have something to sample; what the first to answer has finished."""
        for i, outstanding in enumerate(self._outstanding):
            if outstanding.is_sampled and i not in self._asked:
                self._asked[i] = self._engines[i].start(Engine.poll)
        answers, lost = outcomes(self._asked, self._timeout_s, only_first=True)
        ended = self._taken(answers)
        if lost:
            self._begin_again(lost)
        return ended

    def _taken(self, answers: Mapping[int, list[Finished]]) -> list[Finished]:
        """Return the work that engines have finished, by the caller's tickets."""
        for i in answers:
            del self._asked[i]
        return [e for i, own in answers.items() for e in self._outstanding[i].take(own)]

    def _begin_again(self, lost: Mapping[int, str]) -> None:
        """Replace engines; all have to drop what is under way to be sent weights."""
        others = {i: call for i, call in self._asked.items() if i not in lost}
        answers, also_lost = outcomes(others, self._timeout_s)
        self._ended += self._taken(answers)
        self._asked = {}
        lost = {**lost, **also_lost}
        for i, why in lost.items():
            self._replace_lost(i, why)
        if self._weights is None:
            return
        kept = [i for i in range(len(self._engines)) if i not in lost]
        _, also_lost = outcomes(
            {i: self._engines[i].start(Engine.cancel) for i in kept}, self._timeout_s
        )
        for i, why in also_lost.items():
            self._replace_lost(i, why)
        for outstanding in self._outstanding:
            outstanding.lose()
        self.send()

    def load(self, weights: SentWeights, version: int) -> None:
        """Make the ranks send the engines their weights.

        Calls of those that are sampling are waited for: those of a rank and of this process come in
        any order, and no step may lie between those of a transfer.
        """
        answers, lost = outcomes(self._asked, self._timeout_s)
        self._ended += self._taken(answers)
        if lost:
            self._begin_again(lost)
        before, self._weights, self._version = self._weights, weights, version
        if self.colocation is None:
            self.send()
        else:
            self.colocation.learn()  # they are sent when the engines wake up
        if before is not None:
            before.release()

    def probe(self, prompts: Sequence[Prompt]) -> list[Probe]:
        return self._ask([0], lambda i, engine: engine.start(Engine.probe, prompts))[0]

    def close(self) -> None:
        """Do nothing: ``on_ray`` ends the actors."""

    def call(
        self,
        method: Callable[Concatenate[Engine, Arguments], None],
        *args: Arguments.args,
        **options: Arguments.kwargs,
    ) -> None:
        """Call a method of all engines."""
        every = range(len(self._engines))
        self._ask(every, lambda i, engine: engine.start(method, *args, **options))

    def send(self) -> None:
        """Send the weights to all engines; those that are lost on the way are replaced.

        Raises:
            WorkerLostError: An engine was lost, and ``restarts`` is used up; or the weights do not
                arrive a second time, and no engine is lost.
        """
        assert self._weights is not None
        repeated = False
        while True:
            try:
                return self._weights.send(self._engines, self._version)
            except TransferError as error:
                # Whoever answers has dropped what it had of the transfer.
                engines = dict(enumerate(self._engines))
                calls = {i: e.start(Engine.abandon_weights) for i, e in engines.items()}
                _, lost = outcomes(calls, self._timeout_s)
                if repeated and not lost:
                    raise WorkerLostError(
                        f"{error}; it was repeated. --resume continues from the last checkpoint"
                    ) from error
                logger.warning("%s; it is repeated", error)
                for i, why in lost.items():
                    self._replace_lost(i, why)
                repeated = True

    def _ask(
        self, asked: Sequence[int], call: Callable[[int, Actor[Engine]], Call[Result]]
    ) -> list[Result]:
        """The engines' answers, in order; those that are lost are replaced and asked again once.

        Raises:
            WorkerLostError: An engine was lost, and ``restarts`` is used up or the new one was lost
                too.
        """
        answers, lost = outcomes({i: call(i, self._engines[i]) for i in asked}, self._timeout_s)
        for i, why in lost.items():
            self._replace_lost(i, why)
        if lost and self._weights is not None:
            self.send()
        again, lost = outcomes({i: call(i, self._engines[i]) for i in lost}, self._timeout_s)
        if lost:
            raise WorkerLostError(f"{_lost(*next(iter(lost.items())))}, and so was its replacement")
        return [(answers | again)[i] for i in asked]

    def _replace_lost(self, i: int, why: str) -> None:
        if self.colocation is not None:
            raise WorkerLostError(
                f"{_lost(i, why)}; engines that share the ranks' GPUs are not replaced. --resume "
                "continues from the last checkpoint"
            )
        if self.restarted == self._restarts:
            raise WorkerLostError(
                f"{_lost(i, why)}; rollout.max_restarts={self._restarts} are used up. --resume "
                "continues from the last checkpoint"
            )
        self._outstanding[i].lose()
        self._asked.pop(i, None)
        self.restarted += 1
        counted = f"{self.restarted} of {self._restarts}"
        report_fault(logger, "engine/lost", f"{_lost(i, why)}; replaced, {counted} times")
        self._engines[i] = self._replace(i, self._engines[i])


def _lost(i: int, why: str) -> str:
    return f"rollout engine {i} was lost ({why})"


REMEMBERED = 10_000
"""Prompts whose engine is known; another one would have to read the prompt again."""


class Router:
    """Says which engine samples a request: all turns of a prompt's conversations go to one.

    So its caches serve the next turn, and the completions of a prompt share it.

    Args:
        engines: Their number.
    """

    def __init__(self, engines: int) -> None:
        self._engines = engines
        self._engine_of: dict[tuple[str, str], int] = {}

    def route(self, requests: Sequence[Request], loads: Sequence[int]) -> list[int]:
        """The engine of each request.

        New prompts go in contiguous runs, because prompts that share an image are neighbours: to
        idle engines first, and so many that all engines have as much to sample.

        Args:
            loads: Completions that each engine has under way.
        """
        keys = [(r.prompt.sample.id, r.prompt.text) for r in requests]  # the same in all turns
        sizes = {key: len(r.seeds) for key, r in zip(keys, requests, strict=True)}
        new = deque(key for key in sizes if key not in self._engine_of)
        left = sum(loads) + sum(sizes[key] for key in new)
        order = sorted(range(self._engines), key=lambda i: (loads[i], i))
        for place, engine in enumerate(order):
            filled, share = loads[engine], left / (self._engines - place)
            while new and filled < share:
                key = new.popleft()
                self._engine_of[key] = engine
                filled += sizes[key]
            left -= filled
        engines = [self._engine_of[key] for key in keys]
        for key in list(self._engine_of)[:-REMEMBERED]:  # a stream has new prompts for ever
            del self._engine_of[key]
        return engines
