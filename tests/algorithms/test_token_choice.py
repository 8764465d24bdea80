"""The tokens that a loss treats apart: plain readings of the papers, and the update with them."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from mmr1.algorithms import ratios
from mmr1.algorithms.interface import LossInputs, UpdateTokens
from mmr1.config import AlgorithmConfig
from mmr1.rollout.distribution import Distribution
from mmr1.trainer.algorithm import build_algorithm
from mmr1.trainer.distributed.ray_policy import select_groups
from mmr1.trainer.forward.micro_batches import mini_batch_rows
from mmr1.trainer.forward.sequences import group_input
from mmr1.trainer.sampling.experience import first_advantages
from tests.padded_forward import padded_scores
from tests.trainer.models.policies import assert_close, experience, policy
from tests.trainer.models.recorded_updates import recorded


def tokens(seed: int, rows: int = 6, width: int = 7) -> UpdateTokens:
    generator = torch.Generator().manual_seed(seed)
    lengths = torch.randint(0, width + 1, (rows, 1), generator=generator)
    lengths[0] = width
    return UpdateTokens(
        -torch.rand(rows, width, generator=generator, dtype=torch.float64) * 4,
        torch.randn(rows, width, generator=generator, dtype=torch.float64) * 2,
        torch.arange(width) < lengths,
    )


def plain_covariances(x: UpdateTokens) -> dict[tuple[int, int], float]:
    """Equation by equation, token by token."""
    places = [(i, t) for i, row in enumerate(x.mask.tolist()) for t, kept in enumerate(row) if kept]
    logprobs = [float(x.logprobs[place]) for place in places]
    advantages = [float(x.advantages[place]) for place in places]
    mean_p, mean_a = sum(logprobs) / len(places), sum(advantages) / len(places)
    return {
        place: (p - mean_p) * (a - mean_a)
        for place, p, a in zip(places, logprobs, advantages, strict=True)
    }


def places(chosen: torch.Tensor) -> set[tuple[int, int]]:
    return {(int(i), int(t)) for i, t in chosen.nonzero()}


@settings(deadline=None, max_examples=30)
@given(st.integers(0, 10_000), st.sampled_from([0.01, 0.1, 0.5]))
def test_kl_cov_takes_the_tokens_of_the_highest_covariance(seed, ratio):
    x = tokens(seed)
    plain = plain_covariances(x)
    actual = ratios.covariances(x.logprobs, x.advantages, x.mask)
    for place, covariance in plain.items():
        assert float(actual[place]) == pytest.approx(covariance)
    count = max(1, math.floor(ratio * len(plain)))
    expected = sorted(plain, key=plain.__getitem__, reverse=True)[:count]
    assert places(ratios.kl_cov(actual, ratio)) == set(expected)


def test_covariance_of_one_token_and_of_none():
    """One token differs from no mean; masked tokens are never chosen, whatever they hold."""
    values, mask = torch.tensor([[-2.0, 7.0]]), torch.tensor([[True, False]])
    covariance = ratios.covariances(values, values, mask)
    assert covariance.tolist() == [[0.0, -math.inf]]
    assert ratios.kl_cov(covariance, 0.2).tolist() == [[True, False]]  # at least one
    nothing = ratios.covariances(values, values, mask & ~mask)
    assert nothing.tolist() == [[-math.inf] * 2]
    assert not ratios.kl_cov(nothing, 0.2).any()
    assert not ratios.clip_cov(nothing, 0.2, -1.0, 1.0, 0).any()


@settings(deadline=None, max_examples=30)
@given(st.integers(0, 10_000))
def test_clip_cov_draws_among_the_tokens_within_its_bounds(seed):
    x = tokens(seed)
    plain = plain_covariances(x)
    covariance = ratios.covariances(x.logprobs, x.advantages, x.mask)
    within = {place for place, value in plain.items() if 0.5 < value < 3}
    drawn = places(ratios.clip_cov(covariance, 0.1, 0.5, 3.0, seed))
    assert drawn <= within
    assert len(drawn) == min(len(within), max(1, math.floor(0.1 * len(plain))))
    assert drawn == places(ratios.clip_cov(covariance, 0.1, 0.5, 3.0, seed))


def test_clip_cov_draws_every_token_equally_often():
    x = tokens(1)
    covariance = ratios.covariances(x.logprobs, x.advantages, x.mask)
    within = (covariance > 0) & (covariance < 100)
    draws = [ratios.clip_cov(covariance, 0.1, 0.0, 100.0, seed) for seed in range(1000)]
    often = torch.stack(draws).sum(0)[within] / 1000
    expected = int(draws[0].sum()) / int(within.sum())
    assert (often - expected).abs().max() < 5 * math.sqrt(expected * (1 - expected) / 1000)


@settings(deadline=None, max_examples=30)
@given(st.integers(0, 10_000), st.sampled_from([0.05, 0.2, 0.5, 1.0]))
def test_high_entropy_is_above_trls_quantile(seed, share):
    x = tokens(seed)
    entropy = -x.logprobs
    threshold = torch.quantile(entropy[x.mask], 1 - share)
    kept = ratios.high_entropy(entropy, x.mask, share)
    assert torch.equal(kept, x.mask & (entropy >= threshold - 1e-12))
    nothing = torch.zeros_like(x.mask)
    assert not ratios.high_entropy(entropy, nothing, share).any()


def loss_inputs(name: str, **loss: float) -> tuple[AlgorithmConfig, LossInputs, torch.Tensor]:
    """Of log-probs that differ from the old ones; what the algorithm chose is in them."""
    config = AlgorithmConfig(name=name, loss=loss, ppo_epochs=2)
    x = tokens(3)
    algorithm = build_algorithm(config)
    chosen = algorithm.policy_loss.choose(x)
    new = (x.logprobs + torch.linspace(-0.5, 0.5, 42).view(6, 7)).requires_grad_()
    loss = algorithm.loss(
        LossInputs(new, x.logprobs, x.advantages, torch.zeros_like(new), x.mask, chosen=chosen)
    )
    assert chosen.any()
    return x, new, chosen, torch.autograd.grad(loss[x.mask].sum(), new)[0]


def test_clip_covs_tokens_have_no_gradient_and_the_others_that_of_the_ratio():
    x, new, chosen, actual = loss_inputs("clip_cov", ratio=0.1)
    expected = -(new - x.logprobs).exp() * x.advantages  # within 0 and 2 nothing is clipped
    expected = torch.where(chosen | ~x.mask, 0.0, expected)
    torch.testing.assert_close(actual, expected)


def test_clip_cov_chooses_covariances_between_one_and_five():
    """With a share of all tokens it takes every one of them; the authors' bounds."""
    x = tokens(5)
    x = UpdateTokens(1.5 * x.logprobs, 1.5 * x.advantages, x.mask)
    algorithm = build_algorithm(AlgorithmConfig(name="clip_cov", loss={"ratio": 1.0}, ppo_epochs=2))
    plain = plain_covariances(x)
    between = {place for place, value in plain.items() if 1 < value < 5}
    assert places(algorithm.policy_loss.choose(x)) == between
    assert any(5 < value < 10 for value in plain.values())
    assert any(0.5 < value < 1 for value in plain.values())


def test_clip_cov_clips_other_tokens_between_its_bounds():
    """The lower and the upper clip of its section, which differ here."""
    keys = {"ratio": 0.1, "clip_ratio_low": 0.1, "clip_ratio_high": 0.3}
    x, new, chosen, actual = loss_inputs("clip_cov", **keys)
    rho = (new - x.logprobs).exp()
    cut = ((rho > 1.3) & (x.advantages > 0)) | ((rho < 0.9) & (x.advantages < 0))
    expected = torch.where(cut | chosen | ~x.mask, 0.0, -rho * x.advantages)
    torch.testing.assert_close(actual, expected)
    assert (cut & ~chosen & (rho < 1)).any()
    assert (cut & ~chosen & (rho > 1)).any()


def test_kl_covs_tokens_are_drawn_back():
    x, new, chosen, actual = loss_inputs("kl_cov", ratio=0.2, coef=0.7)
    for i, t in x.mask.nonzero().tolist():
        rho = math.exp(float(new[i, t] - x.logprobs[i, t]))
        back = 0.7 * (1 if rho > 1 else -1) if chosen[i, t] else 0.0
        assert float(actual[i, t]) == pytest.approx(-rho * float(x.advantages[i, t]) + back)


def naive_scores(parts, model):
    family, _, media, scored = parts
    inputs = [group_input(family, media, s.group) for s in scored]
    return padded_scores(model, inputs, Distribution(forbidden=family.forbidden_ids))


@pytest.mark.parametrize("size", [None, 2])
@pytest.mark.parametrize("budget", [100, 10_000])
def test_the_policy_loss_learns_from_the_tokens_of_high_entropy(parts, size, budget):
    """``1 / sum |o|  sum of 1[H_t >= threshold] A log p``, the threshold that of the mini-batch."""
    config = AlgorithmConfig(
        name="rloo",
        loss={"clip_ratio_high": 9.0, "top_entropy_quantile": 0.2},
        ppo_mini_batch_size=size,
    )
    own, model = policy(parts, config, budget)
    gradients = recorded(own, model)
    batch = experience(parts, config, own)
    own.update(batch)
    plain = build_advantages(parts)
    naive = naive_scores(parts, model)
    for step, gradient in enumerate(gradients):
        rows = mini_batch_rows(batch.groups, config.ppo_mini_batch_size)[step]
        mask = batch.tokens.mask & rows[:, None]
        threshold = torch.quantile(naive.entropy.detach()[mask], 0.8)
        loss, learnt = torch.zeros(()), 0
        for i, t in mask.nonzero().tolist():
            if naive.entropy[i, t] >= threshold - 1e-6:
                loss = loss - plain[i] * naive.logprobs[i, t] / int(mask.sum())
                learnt += 1
        assert 0.15 < learnt / int(mask.sum()) < 0.35
        model.zero_grad()
        loss.backward(retain_graph=True)
        assert_close(gradient, {n: p.grad for n, p in model.named_parameters()})


def build_advantages(parts) -> list[float]:
    """Leave-one-out, by hand."""
    rows = [[r.value for r in s.rewards] for s in parts[3]]
    return [r - (sum(row) - r) / (len(row) - 1) for row in rows for r in row]


def test_tokens_are_compared_over_all_ranks(parts):
    """The choice is made before the groups are shared out; a rank gets its rows of it."""
    config = AlgorithmConfig(
        name="kl_cov", advantage={"type": "rloo"}, loss={"ratio": 0.1}, ppo_mini_batch_size=2
    )
    own, _ = policy(parts, config)
    batch = experience(parts, config, own)
    assert batch.tokens.chosen is not None
    for step in range(2):
        rows = mini_batch_rows(batch.groups, config.ppo_mini_batch_size)[step]
        x = UpdateTokens(
            batch.tokens.old_logprobs, batch.tokens.advantages, batch.tokens.mask & rows[:, None]
        )
        plain = plain_covariances(x)
        count = max(1, int(0.1 * len(plain)))
        expected = sorted(plain, key=plain.__getitem__, reverse=True)[:count]
        assert places(batch.tokens.chosen & rows[:, None]) == set(expected)
    shares = [select_groups(batch, share) for share in ([0, 2], [1])]
    assert sum(int(share.tokens.chosen.sum()) for share in shares) == int(batch.tokens.chosen.sum())
    learning = sum(mini_batch.learning for mini_batch in batch.mini_batches).bool()
    assert (learning | ~batch.tokens.chosen.any(1)).all()  # they learn without an advantage too


def test_a_completions_logged_advantage_is_one_that_it_learns_from(parts):
    config = AlgorithmConfig(name="rloo", loss={"top_entropy_quantile": 0.5})
    own, _ = policy(parts, config)
    batch = experience(parts, config, own)
    plain = build_advantages(parts)
    logged = first_advantages(batch.tokens.advantages).tolist()
    assert any(row[0] == 0 and row.any() for row in batch.tokens.advantages)
    for row, value, expected in zip(batch.tokens.advantages, logged, plain, strict=True):
        assert value == pytest.approx(expected if row.any() else 0.0, abs=1e-6)
