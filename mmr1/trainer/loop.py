"""The training loop: sample, score, learn, hand the weights on.

The same for one process and for many: ``policy`` and ``rollout`` are protocols, and the loop does
not know which implementation it holds.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from mmr1.config import Config
from mmr1.data.sampler import Sampler
from mmr1.rollout.engine import Request, RolloutEngine, request_seed
from mmr1.trainer.algorithms import Algorithm
from mmr1.trainer.experience import ScoresCompletions, build_experience
from mmr1.trainer.metrics import step_stats
from mmr1.trainer.policy import Policy
from mmr1.trainer.scoring import GroupScorer
from mmr1.types import Prompt, Sample, ScoredGroup, StepStats
from mmr1.vision.prepare import MediaCache


@dataclass(frozen=True, slots=True)
class Parts:
    """What a run is put together from; ``trainer/run.py`` builds it from the configuration."""

    sampler: Sampler
    render: Callable[[Sample], Prompt]
    rollout: RolloutEngine
    rewards: GroupScorer
    algorithm: Algorithm
    policy: Policy
    reference: ScoresCompletions | None
    media: MediaCache


def train(config: Config, parts: Parts) -> Iterator[Step]:
    """Run ``trainer.max_steps`` steps, yielding each when it is done."""
    for number in range(1, config.trainer.max_steps + 1):
        clock = Clock()
        prompts = [parts.render(s) for s in parts.sampler.next(config.rollout.prompts)]
        with clock("rollout"):
            groups = parts.rollout.generate(
                requests(config, number, prompts), config.rollout.sampling
            )
        with clock("reward"):
            scored = parts.rewards.score(groups)
        with clock("update"):
            batch = build_experience(
                scored, parts.algorithm, config.algorithm, parts.policy, parts.reference
            )
            stats = parts.policy.update(batch)
        with clock("sync"):
            parts.rollout.load_weights(parts.policy.weights(), parts.policy.version)
        line = step_stats(number, scored, stats, clock.seconds(), parts.media)
        yield Step(number, line, scored, batch.advantages[:, 0].tolist())


def requests(config: Config, step: int, prompts: Sequence[Prompt]) -> list[Request]:
    """``rollout.n`` completions of each prompt, seeded by run, step and prompt."""
    return [
        Request(p, config.rollout.n, request_seed(config.seed, step, p.sample.id)) for p in prompts
    ]


@dataclass(frozen=True, slots=True)
class Step:
    """What one step did.

    Attributes:
        stats: The line for ``metrics.jsonl``.
        advantages: One per completion, in group order.
    """

    number: int
    stats: StepStats
    scored: Sequence[ScoredGroup]
    advantages: list[float]


@dataclass(slots=True)
class Clock:
    """Wall seconds of named parts of a step, and of the whole."""

    parts: dict[str, float] = field(default_factory=dict)
    start: float = field(default_factory=time.perf_counter)

    @contextmanager
    def __call__(self, part: str) -> Iterator[None]:
        begin = time.perf_counter()
        yield
        self.parts[part] = time.perf_counter() - begin

    def seconds(self) -> dict[str, float]:
        return {**self.parts, "step": time.perf_counter() - self.start}
