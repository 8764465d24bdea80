"""Where the steps' rollouts come from: sampled in turn with the updates, or ahead of them.

Ahead, a thread asks the engine (a process of its own) for the next steps while the trainer learns.
The thread works through one queue, so which weights sampled a step does not depend on who was
faster: step k is sampled with the weights after update ``k - 1 - ahead``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Protocol

from mmr1.config import Config
from mmr1.rollout.engine import RolloutEngine
from mmr1.trainer.models.policy import Policy
from mmr1.trainer.models.state import copy_to_cpu
from mmr1.trainer.runs.checkpoint import next_due
from mmr1.trainer.sampling.dynamic_sampling import SampledGroups


@dataclass(frozen=True, slots=True)
class Rollout:
    """What a step learns from, and the seconds that it took."""

    sampled: SampledGroups
    seconds: Mapping[str, float]


class Rollouts(Protocol):
    """What the loop asks for."""

    def take(self, number: int) -> Rollout:
        """The rollout of step ``number``; steps are taken in order."""
        ...

    def load_weights(self, policy: Policy) -> None:
        """What is asked for from now on is sampled with the policy as it is."""
        ...


@contextmanager
def build_rollouts(
    config: Config, engine: RolloutEngine, sample: Callable[[int], Rollout]
) -> Iterator[Rollouts]:
    """``sample`` rolls a step out and scores it, with the weights that the engine has.

    When the block ends well, the engine has the last weights.
    """
    if config.rollout.max_off_policy_steps == 0:
        yield SynchronousRollouts(engine, sample)
        return
    ahead = AsynchronousRollouts(config, engine, sample)
    try:
        yield ahead
        ahead.finish()
    finally:
        ahead.close()


class SynchronousRollouts:
    """Sampling, update, sampling, update, ..."""

    def __init__(self, engine: RolloutEngine, sample: Callable[[int], Rollout]) -> None:
        self._engine = engine
        self.take = sample

    def load_weights(self, policy: Policy) -> None:
        self._engine.load_weights(policy.weights(), policy.version)


class AsynchronousRollouts:
    """Up to ``rollout.max_off_policy_steps`` steps are sampled before they are needed.

    None is under way when a checkpoint is due, so that a resumed run repeats the same schedule.
    """

    def __init__(
        self, config: Config, engine: RolloutEngine, sample: Callable[[int], Rollout]
    ) -> None:
        self._config, self._engine, self._sample = config, engine, sample
        self._thread = ThreadPoolExecutor(1, "rollout")
        self._asked: dict[int, Future[Rollout]] = {}
        self._load: Future[None] | None = None

    def take(self, number: int) -> Rollout:
        newest = max(self._asked, default=number - 1)
        for step in range(newest + 1, self._bound(number) + 1):
            self._asked[step] = self._thread.submit(self._roll_out, step, self._load)
        return self._asked.pop(number).result()

    def load_weights(self, policy: Policy) -> None:
        # Copies: the next update changes the weights while the engine still samples.
        weights = copy_to_cpu(policy.weights())
        self._load = self._thread.submit(self._engine.load_weights, weights, policy.version)

    def finish(self) -> None:
        """Wait until the engine has the last weights."""
        if self._load is not None:
            self._load.result()

    def close(self) -> None:
        """Give up what has not begun."""
        self._thread.shutdown(wait=False, cancel_futures=True)

    def _roll_out(self, step: int, load: Future[None] | None) -> Rollout:
        if load is not None:
            load.result()  # done, as it came before in the queue; raises where it failed
        return self._sample(step)

    def _bound(self, number: int) -> int:
        """The last step that may be under way while step ``number`` learns."""
        ahead = number + self._config.rollout.max_off_policy_steps
        return min(ahead, next_due(self._config.trainer, number))
