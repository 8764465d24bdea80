"""Token losses, their weights and the k3 estimator against numbers worked by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from mmr1.config import AlgorithmConfig
from mmr1.trainer import losses
from mmr1.trainer.algorithms import build_algorithm
from mmr1.trainer.algorithms.algorithm import LossInputs
from mmr1.trainer.experience import build_experience
from mmr1.trainer.kl import k3
from mmr1.types import Completion, Prompt, Reward, RolloutGroup, Sample, ScoredGroup, Status

# Two sequences of 1 and 3 tokens.
MASK = torch.tensor([[True, False, False], [True, True, True]])


@pytest.mark.parametrize(
    ("ratio", "advantage", "expected"),
    [
        (1.0, 2.0, -2.0),
        (1.5, 2.0, -2.4),  # clipped at 1.2
        (1.5, -2.0, 3.0),  # the minimum keeps the worse, unclipped one
        (0.5, 2.0, -1.0),
        (0.5, -2.0, 1.6),  # clipped at 0.8
    ],
)
def test_ppo_clip_by_hand(ratio, advantage, expected):
    loss = losses.ppo_clip(
        torch.tensor(math.log(ratio)), torch.tensor(0.0), torch.tensor(advantage), 0.2, 0.2
    )
    assert float(loss) == pytest.approx(expected, abs=1e-6)


def test_the_clip_fraction_counts_where_the_gradient_is_cut_off():
    ratios = torch.tensor([1.5, 1.5, 0.5, 0.5, 1.1], requires_grad=True)
    advantages = torch.tensor([1.0, -1.0, 1.0, -1.0, 1.0])
    logprobs = ratios.log()
    losses.ppo_clip(logprobs, torch.zeros(5), advantages, 0.2, 0.2).sum().backward()
    cut = losses.clip_fraction_mask(logprobs.detach(), torch.zeros(5), advantages, 0.2, 0.2)
    assert cut.tolist() == (ratios.grad == 0).tolist() == [True, False, False, True, False]


def test_weights_by_hand():
    third, quarter = 1 / 3, 1 / 4
    sequence = [[0.5, 0, 0], [0.5 * third] * 3]
    token = [[quarter, 0, 0], [quarter] * 3]
    constant = [[0.05, 0, 0], [0.05] * 3]  # 1 / (2 sequences * 10 tokens)
    for name, expected in (("sequence", sequence), ("token", token), ("constant", constant)):
        weights = losses.token_weights(MASK, name, 10)
        torch.testing.assert_close(weights, torch.tensor(expected))


def test_a_masked_sequence_does_not_count():
    mask = torch.cat([MASK, torch.zeros(1, 3, dtype=torch.bool)])
    for name in ("sequence", "token", "constant"):
        with_it = losses.token_weights(mask, name, 10)[:2]
        torch.testing.assert_close(with_it, losses.token_weights(MASK, name, 10))


def test_k3_by_hand():
    # ratio r = q/p = 2: r - log r - 1 = 0.306853
    found = k3(torch.tensor(math.log(0.25)), torch.tensor(math.log(0.5)))
    assert float(found) == pytest.approx(2 - math.log(2) - 1, abs=1e-6)


@settings(deadline=None)
@given(st.integers(0, 10_000))
def test_k3_is_unbiased_and_never_negative(seed):
    generator = torch.Generator().manual_seed(seed)
    p, q = torch.randn(2, 8, generator=generator, dtype=torch.float64).log_softmax(-1)
    estimate = k3(p, q)
    assert (estimate >= 0).all()
    exact = (p.exp() * (p - q)).sum()
    torch.testing.assert_close((p.exp() * estimate).sum(), exact)  # the mean over all tokens


def completion(length: int, truncated: bool = False) -> Completion:
    return Completion(np.arange(length), np.zeros(length, np.float32), "", truncated, 0)


def scored(lengths: list[int], rewards: list[float], truncated: int = -1) -> ScoredGroup:
    completions = tuple(completion(n, i == truncated) for i, n in enumerate(lengths))
    group = RolloutGroup(Prompt(Sample("s", ()), "", ()), completions)
    return ScoredGroup(group, tuple(Reward(r) for r in rewards))


def loss_by_algorithm(name: str, logprobs: torch.Tensor, **config: object) -> float:
    """The loss of two groups: one with signal and unequal lengths, one of equal rewards."""
    groups = [scored([1, 3], [1.0, 0.0]), scored([2, 2], [0.5, 0.5])]
    settings = AlgorithmConfig(name=name, **config)
    algorithm = build_algorithm(settings)
    batch = build_experience(groups, algorithm, settings, policy=None)
    inputs = LossInputs(logprobs, logprobs.detach(), batch.advantages, torch.zeros(4, 3), None)
    weights = losses.token_weights(batch.completion_mask, algorithm.aggregation)
    return float((weights * algorithm.token_loss(inputs)).sum())


def test_grpo_loss_by_hand():
    # Group 1: advantages +-0.5 / sqrt(0.5) = +-0.7071, ratios 1: sequence means -0.7071 and
    # +0.7071; group 2: 0. The mean over 4 sequences is 0.
    assert loss_by_algorithm("grpo", torch.zeros(4, 3)) == pytest.approx(0, abs=1e-6)
    # Per token: (-0.7071 + 3 * 0.7071) / 8 tokens.
    found = loss_by_algorithm("grpo", torch.zeros(4, 3), aggregation="token")
    assert found == pytest.approx(2 * 0.70710678 / 8, abs=1e-5)


def test_rloo_loss_by_hand():
    # Advantages +1 and -1; log-probs -1 each: token losses -(1)(-1) = 1 and -(-1)(-1) = -1.
    # Per token over the batch: (1 - 3) / 8.
    logprobs = torch.full((4, 3), -1.0)
    assert loss_by_algorithm("rloo", logprobs) == pytest.approx(-0.25)
    found = loss_by_algorithm("rloo", logprobs, aggregation="sequence")
    assert found == pytest.approx((1 - 1) / 4, abs=1e-6)


@pytest.mark.parametrize(("mask_truncated", "tokens"), [(False, 4), (True, 1)])
def test_a_truncated_completion_is_kept_or_masked(mask_truncated, tokens):
    config = AlgorithmConfig(mask_truncated=mask_truncated)
    group = scored([1, 3], [1.0, 0.0], truncated=1)
    batch = build_experience([group], build_algorithm(config), config, policy=None)
    assert int(batch.completion_mask.sum()) == tokens
    assert (batch.advantages[~batch.completion_mask] == 0).all()
    assert batch.advantages[0, 0] > 0  # the truncated one is still in the baseline


def test_an_invalid_reward_trains_nothing():
    config = AlgorithmConfig()
    group = scored([2, 2, 2], [1.0, 0.0, 0.0])
    rewards = (*group.rewards[:2], Reward(None, Status.TIMEOUT, error="too slow"))
    batch = build_experience(
        [ScoredGroup(group.group, rewards)], build_algorithm(config), config, policy=None
    )
    assert not batch.completion_mask[2].any()
    assert batch.advantages[0, 0] == -batch.advantages[1, 0] > 0
