"""Rewards as the advantages see them: normalised by all rewards so far, and clipped.

What is logged are the rewards as they were given.
"""

from __future__ import annotations

from dataclasses import replace

import torch

from mmr1.config import AlgorithmConfig
from mmr1.trainer.algorithms.algorithm import AdvantageInputs

COUNT, MEAN, SQUARES = "rewards/count", "rewards/mean", "rewards/squares"


def scaled_rewards(
    x: AdvantageInputs, config: AlgorithmConfig, state: dict[str, float]
) -> AdvantageInputs:
    """With the rewards of completions, the greedy ones too, scaled as the configuration says.

    ``clip((r - mean) / (std + eps), low, high)``, or one of the two (arXiv 2307.04964: reward
    normalization and clipping).

    Args:
        state: The moments of all rewards before; this batch's are added.
    """
    rewards, greedy = x.rewards, x.greedy
    if config.normalize_rewards:
        add_rewards(state, rewards[x.valid])
        rewards = torch.where(x.valid, normalised(rewards, state), 0.0)
        greedy = None if greedy is None else normalised(greedy, state)
    if config.reward_clip_range is not None:
        low, high = config.reward_clip_range
        rewards = rewards.clamp(low, high)
        greedy = None if greedy is None else greedy.clamp(low, high)
    return replace(x, rewards=rewards, greedy=greedy)


def add_rewards(state: dict[str, float], rewards: torch.Tensor) -> None:
    """Add ``[N]`` rewards to the running count, mean and sum of squared differences from it.

    The parallel form of Welford's algorithm (Chan, Golub and LeVeque 1979).
    """
    if len(rewards) == 0:
        return
    before, mean = state.get(COUNT, 0.0), state.get(MEAN, 0.0)
    values = rewards.double()
    gap = float(values.mean()) - mean
    total = before + len(values)
    squares = float((values - values.mean()).square().sum())
    state[SQUARES] = state.get(SQUARES, 0.0) + squares + gap**2 * before * len(values) / total
    state[MEAN] = mean + gap * len(values) / total
    state[COUNT] = total


def normalised(rewards: torch.Tensor, state: dict[str, float], eps: float = 1e-6) -> torch.Tensor:
    """``(r - mean) / (std + eps)``, the sample deviation of all rewards so far."""
    freedom = max(state.get(COUNT, 0.0) - 1, 1.0)
    deviation = (state.get(SQUARES, 0.0) / freedom) ** 0.5
    return (rewards - state.get(MEAN, 0.0)) / (deviation + eps)
