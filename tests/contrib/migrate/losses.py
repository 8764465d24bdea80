"""One mini-batch of given log-probs and rewards, and our loss on it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from mmr1.algorithms.interface import LossInputs, UpdateTokens
from mmr1.config import AlgorithmConfig
from mmr1.trainer.algorithm import build_algorithm
from mmr1.trainer.sampling.experience import Models, build_experience
from mmr1.types import Completion, Prompt, Reward, RolloutGroup, Sample, ScoredGroup

LENGTHS = [[3, 5, 2], [4, 1, 6]]
"""Tokens of each completion, by prompt."""

REWARDS = [[1.0, 0.0, 0.25], [0.0, 0.5, 0.0]]
LONGEST = 6
EACH = [length for group in LENGTHS for length in group]


@dataclass(frozen=True)
class Tensors:
    """``[B, R]``: log-probs of the policy, before the update and of the reference; entropy."""

    new: torch.Tensor
    old: torch.Tensor
    ref: torch.Tensor
    entropy: torch.Tensor


def tensors(seed: int = 0) -> Tensors:
    generator = torch.Generator().manual_seed(seed)

    def random(function: Any) -> torch.Tensor:
        return function((len(EACH), LONGEST), generator=generator, dtype=torch.float64)

    old = -random(torch.rand)
    new = (old + random(torch.randn) / 3).requires_grad_()
    return Tensors(new, old, old + random(torch.randn) / 2, random(torch.rand))


def tokens() -> Iterator[tuple[int, int]]:
    """Row and position of every token."""
    return ((row, t) for row, length in enumerate(EACH) for t in range(length))


class Given:
    """A policy or reference of given log-probs."""

    def __init__(self, logprobs: torch.Tensor) -> None:
        self._logprobs = logprobs

    def logprobs(self, groups) -> torch.Tensor:
        return self._logprobs


def _group(lengths: list[int], rewards: list[float]) -> ScoredGroup:
    completions = tuple(
        Completion(np.arange(n), np.zeros(n, np.float32), "", False, 0) for n in lengths
    )
    rollout = RolloutGroup(Prompt(Sample("s", ()), "", ()), completions)
    return ScoredGroup(rollout, tuple(map(Reward, rewards)))


def our_loss(
    section: Mapping[str, Any], x: Tensors, rewards: list[list[float]] = REWARDS
) -> torch.Tensor:
    """The loss of a migrated ``algorithm`` section on one of several mini-batches."""
    config = AlgorithmConfig(**{**section, "ppo_mini_batch_size": 2})
    groups = [_group(*both) for both in zip(LENGTHS, rewards, strict=True)]
    algorithm = build_algorithm(config, max_tokens=LONGEST)
    models = Models(Given(x.old), Given(x.ref) if config.kl is not None else None)
    batch = build_experience(groups, algorithm, models)
    chosen = None
    if algorithm.policy_loss.choose is not None:
        before = UpdateTokens(x.old, batch.tokens.advantages.double(), batch.tokens.mask)
        chosen = algorithm.policy_loss.choose(before)
    inputs = LossInputs(
        x.new, x.old, batch.tokens.advantages.double(), x.entropy, batch.tokens.mask,
        batch.tokens.ref_logprobs, batch.coefficients.kl, batch.coefficients.entropy, chosen=chosen,
    )  # fmt: skip
    return (batch.tokens.loss_weights * algorithm.loss(inputs)).sum()


def check_equal(ours: torch.Tensor, theirs: torch.Tensor, new: torch.Tensor, value: bool = True):
    """Equal gradients to 1e-6, and with ``value`` equal losses."""
    gradient = torch.autograd.grad(theirs, new)[0]
    assert gradient.abs().max() > 1e-3, "there is nothing to compare"
    torch.testing.assert_close(torch.autograd.grad(ours, new)[0], gradient, atol=1e-6, rtol=1e-6)
    if value:
        torch.testing.assert_close(ours, theirs, atol=1e-6, rtol=1e-6)
