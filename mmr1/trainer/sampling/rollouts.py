"""Rollouts of the steps: synchronous with the updates, or asynchronous.

Asynchronous rollouts are sampled by the engine's own process while the trainer learns. One thread
works through one queue of requests and weight updates. So the weights that sample a step do not
depend on timing: step k is sampled with the weights after update
``k - 1 - rollout.max_off_policy_steps``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol

from mmr1.config import Config
from mmr1.rollout.engine import RolloutEngine
from mmr1.trainer.models.policy import Policy
from mmr1.trainer.runs.checkpoint import next_due
from mmr1.trainer.sampling.dynamic_sampling import SampledGroups


@dataclass(frozen=True, slots=True)
class Rollout:
    """The sampled groups of a step.

    Attributes:
        seconds: Of each phase.
        state: Gives the state after this rollout of what rollouts move on, as JSON values. With
            rollouts ahead those of later steps move on before this step has learned.
    """

    sampled: SampledGroups
    seconds: Mapping[str, float]
    state: Callable[[], Mapping[str, Any]]


class Rollouts(Protocol):
    """Where the loop gets its rollouts."""

    def take(self, number: int) -> Rollout:
        """The rollout of step ``number``; steps are taken in order."""
        ...

    def load_weights(self, policy: Policy) -> None:
        """Load the policy's weights into the engine, for the rollouts submitted after this."""
        ...

    def finish(self) -> None:
        """Wait until the engine has the last weights."""
        ...


@contextmanager
def build_rollouts(
    config: Config, engine: RolloutEngine, sample: Callable[[int], Rollout]
) -> Iterator[Rollouts]:
    """Rollouts as ``rollout.max_off_policy_steps`` asks for.

    ``sample`` samples and scores the rollout of a step. When the block ends without an error, the
    engine has the last weights.
    """
    if config.rollout.max_off_policy_steps == 0:
        yield SynchronousRollouts(engine, sample)
        return
    rollouts = AsynchronousRollouts(config, engine, sample)
    try:
        yield rollouts
        rollouts.finish()
    finally:
        rollouts.close()


class SynchronousRollouts:
    """Each step is sampled with the weights of the update before it."""

    def __init__(self, engine: RolloutEngine, sample: Callable[[int], Rollout]) -> None:
        self._engine = engine
        self.take = sample

    def load_weights(self, policy: Policy) -> None:
        self._engine.load_weights(policy.weights(), policy.version)

    def finish(self) -> None:
        """It has them."""


class AsynchronousRollouts:
    """Up to ``rollout.max_off_policy_steps`` steps are sampled before they are needed.

    No rollout is pending when a checkpoint is due, so that a resumed run has the same schedule, nor
    when a validation is, which needs the engine. A signal may stop a run between checkpoints: the
    rollouts that are pending then are lost, and the resumed run samples their steps again.
    """

    def __init__(
        self, config: Config, engine: RolloutEngine, sample: Callable[[int], Rollout]
    ) -> None:
        self._config, self._engine, self._sample = config, engine, sample
        self._thread = ThreadPoolExecutor(1, "rollout")
        self._futures: dict[int, Future[Rollout]] = {}
        self._load: Future[None] | None = None

    def take(self, number: int) -> Rollout:
        last_submitted = max(self._futures, default=number - 1)
        for step in range(last_submitted + 1, self._last_to_submit(number) + 1):
            self._futures[step] = self._thread.submit(self._roll_out, step, self._load)
        return self._futures.pop(number).result()

    def load_weights(self, policy: Policy) -> None:
        # A copy: the next update changes the weights while the engine still samples.
        weights = policy.weights(copy=True)
        self._load = self._thread.submit(self._engine.load_weights, weights, policy.version)

    def finish(self) -> None:
        """Wait until the engine has the last weights."""
        if self._load is not None:
            self._load.result()

    def close(self) -> None:
        """Cancel the rollouts that have not begun."""
        self._thread.shutdown(wait=False, cancel_futures=True)

    def _roll_out(self, step: int, load: Future[None] | None) -> Rollout:
        if load is not None:
            load.result()  # finished before this began; raises its error
        return self._sample(step)

    def _last_to_submit(self, number: int) -> int:
        """The last step that may be sampled while step ``number`` learns."""
        last = number + self._config.rollout.max_off_policy_steps
        trainer = self._config.trainer
        return min(last, next_due(trainer, number), trainer.next_validation(number))
