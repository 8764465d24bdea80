"""PPO's advantages as verl, OpenRLHF and TRL compute them, read plainly, on the same tensors.

verl 0.9 (``compute_gae_advantage_return``), OpenRLHF 0.11 (``get_advantages_and_returns``) and
TRL 1.16 (``trl.experimental.ppo``). All three whiten the advantages of a batch: verl and TRL by the
sample's variance, OpenRLHF and mmr1 by the population's.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from statistics import fmean, pvariance, variance

import numpy as np
import pytest
import torch

from mmr1.algorithms.interface import AdvantageInputs
from mmr1.config import AlgorithmConfig
from mmr1.trainer.algorithm import build_algorithm
from mmr1.trainer.sampling.experience import run_on_sampled_tokens

Rows = list[list[float]]
WIDTH = 9
LENGTHS = (9, 4, 6, 1)


@dataclass(frozen=True)
class Batch:
    """Completions of ``LENGTHS`` tokens, with numbers after their ends that nobody may read."""

    rewards: list[float]
    penalties: Rows
    values: Rows
    gamma: float
    lam: float


@pytest.fixture(params=[(1.0, 1.0), (1.0, 0.95), (0.97, 0.9)], ids=str)
def batch(request) -> Batch:
    rng = np.random.default_rng(3)
    shape = (len(LENGTHS), WIDTH)
    rewards = rng.normal(size=len(LENGTHS)).tolist()
    penalties = rng.normal(0, 0.1, shape).tolist()
    return Batch(rewards, penalties, rng.normal(size=shape).tolist(), *request.param)


def ours(batch: Batch, mask: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Advantages and the critic's targets, as a step of training has them."""
    keys = {"gamma": batch.gamma, "lam": batch.lam}
    advantage = build_algorithm(AlgorithmConfig(name="ppo", advantage=keys)).advantage
    inputs = AdvantageInputs(
        rewards=torch.tensor(batch.rewards)[:, None],
        valid=torch.ones(len(LENGTHS), 1, dtype=torch.bool),
        mask=mask,
        kl_penalty=torch.tensor(batch.penalties) * mask,
        values=torch.tensor(batch.values) * mask,
    )
    assert advantage.returns is not None
    advantages = run_on_sampled_tokens(advantage.of_tokens, inputs, mask)
    return advantages, run_on_sampled_tokens(advantage.returns, inputs, mask)


def lengths_mask() -> torch.Tensor:
    return torch.arange(WIDTH) < torch.tensor(LENGTHS)[:, None]


def whitened(rows: Rows, mask: torch.Tensor, of: Callable[[list[float]], float]) -> torch.Tensor:
    """Less the mean of the tokens that count, by the root of their variance; 0 elsewhere."""
    chosen = [
        a
        for row, ms in zip(rows, mask.tolist(), strict=True)
        for a, m in zip(row, ms, strict=True)
        if m
    ]
    mean, scale = fmean(chosen), 1 / math.sqrt(of(chosen) + 1e-8)
    return torch.tensor([[(a - mean) * scale for a in row] for row in rows]) * mask


def backwards(
    rewards: list[float], values: list[float], following: list[float], batch: Batch
) -> list[float]:
    """GAE of a row: ``following[t]`` is the value of the state after token t."""
    found, last = [0.0] * len(rewards), 0.0
    for t in reversed(range(len(rewards))):
        delta = rewards[t] + batch.gamma * following[t] - values[t]
        found[t] = last = delta + batch.gamma * batch.lam * last
    return found


def verl(batch: Batch, mask: torch.Tensor) -> tuple[Rows, torch.Tensor]:
    """Tokens that do not count hand both the value and the advantage on to the token before."""
    rows = []
    for row, counts in enumerate(mask.tolist()):
        places = [t for t, m in enumerate(counts) if m]
        value, last, found = 0.0, 0.0, [0.0] * WIDTH
        for t in reversed(range(WIDTH)):
            reward = (batch.rewards[row] if t == places[-1] else 0.0) - batch.penalties[row][t]
            if counts[t]:
                delta = reward + batch.gamma * value - batch.values[row][t]
                last, value = delta + batch.gamma * batch.lam * last, batch.values[row][t]
            found[t] = last
        rows.append(found)
    return rows, whitened(rows, mask, variance)


def openrlhf(batch: Batch) -> tuple[Rows, torch.Tensor]:
    """Values and rewards are 0 after the end, so that what comes from there is 0 too."""
    rows = []
    for row, length in enumerate(LENGTHS):
        rewards = [-p for p in batch.penalties[row][:length]] + [0.0] * (WIDTH - length)
        rewards[length - 1] += batch.rewards[row]
        values = batch.values[row][:length] + [0.0] * (WIDTH - length)
        rows.append(backwards(rewards, values, [*values[1:], 0.0], batch))
    return rows, whitened(rows, lengths_mask(), pvariance)


def trl(batch: Batch) -> tuple[Rows, torch.Tensor]:
    """Where a row has room, its score is on the place after its last token, which has a value."""
    rows = []
    for row, length in enumerate(LENGTHS):
        last = min(length, WIDTH - 1)
        rewards = [-p for p in batch.penalties[row][:length]] + [0.0] * (WIDTH - length)
        rewards[last] += batch.rewards[row]
        values = batch.values[row][: length + 1] + [0.0] * (WIDTH - length - 1)
        rows.append(backwards(rewards, values, [*values[1:], 0.0], batch))
    return rows, whitened(rows, lengths_mask(), variance)


def assert_targets(returns: torch.Tensor, rows: Rows, batch: Batch, mask: torch.Tensor) -> None:
    targets = (torch.tensor(rows) + torch.tensor(batch.values)) * mask
    torch.testing.assert_close(returns, targets, rtol=1e-5, atol=1e-6)


def by_the_sample(advantages: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """Ours, were they divided by the sample's deviation: the factor that migrate's note names."""
    tokens = int(mask.sum())
    return advantages * math.sqrt((tokens - 1) / tokens)


def test_openrlhfs_are_ours(batch):
    mask = lengths_mask()
    advantages, returns = ours(batch, mask)
    rows, expected = openrlhf(batch)
    torch.testing.assert_close(advantages, expected, rtol=1e-5, atol=1e-5)
    assert_targets(returns, rows, batch, mask)


def test_verls_are_ours_but_for_the_samples_deviation(batch):
    mask = lengths_mask()
    advantages, returns = ours(batch, mask)
    rows, expected = verl(batch, mask)
    torch.testing.assert_close(by_the_sample(advantages, mask), expected, rtol=1e-5, atol=1e-5)
    assert (advantages - expected).abs().max() > 1e-2  # the factor is there
    assert_targets(returns, rows, batch, mask)


def test_verls_are_ours_with_answers_of_tools_between_the_turns(batch):
    """Both continue behind an answer as if it were not there."""
    mask = lengths_mask()
    mask[0, 3:6] = mask[2, 1] = False
    advantages, returns = ours(batch, mask)
    rows, expected = verl(batch, mask)
    torch.testing.assert_close(by_the_sample(advantages, mask), expected, rtol=1e-5, atol=1e-5)
    assert_targets(returns, rows, batch, mask)


def test_trls_are_ours_where_its_score_is_on_the_last_token(batch):
    """It is there in a row of full width; elsewhere with gamma = lambda = 1 it makes no difference.

    Else the value of the place behind the last token, which the critic learns too, has a part.
    """
    mask = lengths_mask()
    rows, expected = trl(batch)
    advantages, returns = ours(batch, mask)
    targets = (torch.tensor(rows) + torch.tensor(batch.values)) * mask
    if batch.gamma == batch.lam == 1:
        found = by_the_sample(advantages, mask)
        torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)
        assert_targets(returns, rows, batch, mask)
    else:
        torch.testing.assert_close(returns[0], targets[0], rtol=1e-5, atol=1e-6)
        assert (returns[1] - targets[1]).abs().max() > 1e-3
