"""Several rollout engines behind the protocol of a single one."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Concatenate, ParamSpec, TypeVar

import numpy as np

from mmr1.config import SamplingConfig
from mmr1.logs import report_fault
from mmr1.rollout.engine import PreparedRequest, Probe, Request
from mmr1.trainer.distributed import ray_calls
from mmr1.trainer.distributed.colocation import Colocation
from mmr1.trainer.distributed.engine_actor import Engine
from mmr1.trainer.distributed.errors import TransferError, WorkerLostError
from mmr1.trainer.distributed.ray_calls import Actor, Call
from mmr1.trainer.models.policy import SentWeights
from mmr1.types import Completion, Prompt, RolloutGroup

logger = logging.getLogger(__name__)
Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")
outcomes = partial(ray_calls.outcomes, limit="rollout.timeout_s")


class RayEngines:
    """Several engines as one ``RolloutEngine`` and ``TurnEngine``: each gets its share of the
    prompts.

    An engine that dies or hangs is replaced; the ranks send the weights that it had once more, to
    all engines, and it is asked again. Nothing that the lost one sampled was received, so no
    completion is used twice.

    Args:
        replace: Ends an actor and starts another in its place, by its index.
        timeout_s: Longest time that a call may take.
        restarts: How often, in all, an engine is replaced.
        at_once: Turns of conversations are sampled together, to the end of all.

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
        at_once: bool = False,
    ) -> None:
        self.restarted = 0
        self._at_once = at_once
        self._turns = TurnRouter(len(engines))
        self._asked: dict[
            int, Call[dict[int, Completion]]
        ] = {}  # engines that are sampling turns, and what they answer
        self._ended: dict[int, Completion] = {}  # for the next advance
        self._engines = list(engines)
        self._replace = replace
        self._timeout_s = timeout_s
        self._restarts = restarts
        self.colocation: Colocation | None = None
        self._weights: SentWeights | None = None
        self._version = 0

    def generate(self, requests: Sequence[Request], sampling: SamplingConfig) -> list[RolloutGroup]:
        if self.colocation is not None:
            self.colocation.sample()
        # Contiguous shares, because prompts that share an image are neighbours.
        shares = np.array_split(np.arange(len(requests)), len(self._engines))
        of_engine = {
            i: [requests[place] for place in share] for i, share in enumerate(shares) if len(share)
        }
        groups = self._ask(
            list(of_engine),
            lambda i, engine: engine.start(Engine.generate, of_engine[i], sampling),
        )
        return [group for of_share in groups for group in of_share]

    def advance(
        self,
        requests: Mapping[int, PreparedRequest],
        sampling: SamplingConfig,
        moment_s: float = 0.0,
    ) -> dict[int, Completion]:
        """See ``TurnEngine``. Where an engine is lost, turns under way are sampled again."""
        if self.colocation is not None:
            self.colocation.sample()
        if not self._turns:
            self._turns = TurnRouter(len(self._engines))
        self._turns.add({number: prepared.request for number, prepared in requests.items()})
        ended, self._ended = self._ended, {}
        ended |= self._sample_on(sampling)
        while self._at_once and self._turns:
            ended |= self._sample_on(sampling)
        return ended

    def abandon(self) -> int:
        self._turns, self._asked, self._ended = TurnRouter(len(self._engines)), {}, {}
        every = range(len(self._engines))
        return sum(self._ask(every, lambda i, engine: engine.start(Engine.abandon)))

    def _sample_on(self, sampling: SamplingConfig) -> dict[int, Completion]:
        """Ask idle engines that have turns; returns what the first one to answer has finished."""
        for i in self._turns.waiting():
            if i not in self._asked:
                engine, turns = self._engines[i], self._turns.take(i)
                self._asked[i] = engine.start(Engine.advance, turns, sampling)
        answers, lost = outcomes(self._asked, self._timeout_s, only_first=not self._at_once)
        ended = self._taken(answers)
        if lost:
            others = {i: call for i, call in self._asked.items() if i not in lost}
            answers, also_lost = outcomes(others, self._timeout_s)
            ended |= self._taken(answers)
            self._begin_again(lost | also_lost)
        return ended

    def _taken(self, answers: Mapping[int, dict[int, Completion]]) -> dict[int, Completion]:
        """The turns that engines have finished."""
        ended: dict[int, Completion] = {}
        for i, completions in answers.items():
            del self._asked[i]
            self._turns.finish(i, completions)
            ended |= completions
        return ended

    def _begin_again(self, lost: Mapping[int, str]) -> None:
        """Replace engines; all have to drop their turns to be sent weights."""
        self._asked = {}
        for i, why in lost.items():
            self._replace_lost(i, why)
        if self._weights is None:
            return
        for i in range(len(self._engines)):
            self._turns.lose(i)
        kept = [i for i in range(len(self._engines)) if i not in lost]
        _, also_lost = outcomes(
            {i: self._engines[i].start(Engine.abandon) for i in kept}, self._timeout_s
        )
        for i, why in also_lost.items():
            self._replace_lost(i, why)
        self.send()

    def load_weights(self, weights: SentWeights, version: int) -> None:
        """Make the ranks send the engines their weights.

        Those that are sampling turns are waited for: the calls of a rank and of this process come
        in any order, and no step may lie between those of a transfer.
        """
        answers, lost = outcomes(self._asked, self._timeout_s)
        self._ended |= self._taken(answers)
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
        self._turns.lose(i)
        self._asked.pop(i, None)
        self.restarted += 1
        counted = f"{self.restarted} of {self._restarts}"
        report_fault(logger, "engine/lost", f"{_lost(i, why)}; replaced, {counted} times")
        self._engines[i] = self._replace(i, self._engines[i])


def _lost(i: int, why: str) -> str:
    return f"rollout engine {i} was lost ({why})"


REMEMBERED = 10_000
"""Prompts whose engine is known; another one would have to read the prompt again."""


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
        """Forget what a replaced engine was sent: the new one has to be sent all of it."""
        self._unsent[engine] = set(self._open[engine])

    def _engine(self, request: Request) -> int:
        """The engine that has the prompt already, or else the one with the fewest turns."""
        prompt = (request.prompt.sample.id, request.prompt.text)  # the same in all turns
        if prompt not in self._engine_of:
            loads = list(zip(map(len, self._open), self._prompts, strict=True))
            engine = loads.index(min(loads))
            self._engine_of[prompt] = engine
            self._prompts[engine] += 1
            if len(self._engine_of) > REMEMBERED:  # a stream has new prompts for ever
                del self._engine_of[next(iter(self._engine_of))]
        return self._engine_of[prompt]
