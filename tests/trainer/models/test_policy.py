"""The update: its gradient by an independent road, micro-batches, and what is not finite."""

from __future__ import annotations

import copy
from dataclasses import replace

import pytest
import torch

from mmr1.config import AlgorithmConfig, OptimizerConfig
from mmr1.rollout.distribution import Distribution
from mmr1.trainer.coefficients import Coefficients
from mmr1.trainer.forward.micro_batches import mini_batch_rows
from mmr1.trainer.forward.sequences import ModelInputs
from mmr1.trainer.models.optimizer import NonFiniteError, Optimizer
from mmr1.trainer.models.packed_model import PackedModel
from mmr1.types import MiniBatch
from tests.conftest import REWARDS
from tests.trainer.models.policies import assert_close, experience, naive_gradient, policy


def gradients_of_update(parts, config, budget=10_000, reference=None):
    """The accumulated gradient, caught before the optimizer takes it."""
    own, model = policy(parts, config, budget)
    caught: dict[str, torch.Tensor] = {}

    def step() -> dict[str, float]:
        caught.update({n: p.grad.clone() for n, p in model.named_parameters()})
        return {"grad_norm": 0.0, "lr": 0.0}

    own.optimizer.step = step
    stats = own.update(experience(parts, config, own, reference))
    return caught, stats


def test_grpo_on_policy_is_the_advantage_weighted_policy_gradient(parts):
    actual, _ = gradients_of_update(parts, AlgorithmConfig(name="grpo"))
    rewards = torch.tensor(REWARDS)
    std = rewards.std(-1, keepdim=True)
    advantages = ((rewards - rewards.mean(-1, keepdim=True)) / (std + 1e-6)).tolist()
    assert_close(actual, naive_gradient(parts, "token-mean", advantages))
    assert max(g.abs().max() for g in actual.values()) > 1e-3
    assert any("visual" in name and g.abs().max() > 0 for name, g in actual.items())


def test_rloo_on_policy_is_the_leave_one_out_policy_gradient(parts):
    actual, _ = gradients_of_update(parts, AlgorithmConfig(name="rloo"))
    advantages = [[r - (sum(row) - r) / 3 for r in row] for row in REWARDS]
    assert_close(actual, naive_gradient(parts, "token-mean", advantages))


@pytest.mark.parametrize("config", [{}, {"kl": {"coef": 0.1}}, {"entropy": {"coef": 0.01}}])
@pytest.mark.parametrize("budget", [1, 100])
def test_micro_batches_do_not_change_the_gradient(parts, config, budget):
    settings = AlgorithmConfig(**config)
    family, model, media, _ = parts
    torch.manual_seed(0)
    frozen = copy.deepcopy(model)
    with torch.no_grad():
        frozen.lm_head.weight += 0.05 * torch.randn_like(frozen.lm_head.weight)
    inputs = ModelInputs(family, media)
    reference = (
        PackedModel(frozen, inputs, Distribution(forbidden=inputs.family.forbidden_ids), 100)
        if "kl" in config
        else None
    )
    whole, stats = gradients_of_update(parts, settings, 10_000, reference)
    cut, other = gradients_of_update(parts, settings, budget, reference)
    assert_close(cut, whole, 1e-6)
    assert other == pytest.approx(stats, abs=1e-5)
    assert (stats["kl"] > 0) == ("kl" in config)


def test_a_group_without_signal_is_left_out(parts, monkeypatch):
    # That the mean is still right is what the two tests against the naive gradient show.
    seen: list[int] = []
    token_scores = PackedModel.token_scores

    def counting(self, batch, *options):
        seen.append(len(batch.groups))
        return token_scores(self, batch, *options)

    monkeypatch.setattr(PackedModel, "token_scores", counting)
    gradients_of_update(parts, AlgorithmConfig())
    assert sum(seen) == 2
    gradients_of_update(parts, AlgorithmConfig(entropy={"coef": 0.01}))
    assert sum(seen) == 2 + 3  # with an entropy bonus every group has a gradient


def test_a_mini_batch_that_is_wholly_masked_measures_nothing(parts):
    """What is logged, and what adapts the coefficients, is of the tokens that count."""
    config = AlgorithmConfig(
        loss={"agg_mode": "seq-mean-token-mean"},
        entropy={"coef": 0.01, "target": 0.5},
        ppo_epochs=2,
    )

    def updated(masked: tuple[int, ...]) -> tuple[dict[str, float], float, Coefficients]:
        """Also the entropy of the tokens that count, before the update."""
        own, _ = policy(parts, config)
        batch = experience(parts, config, own)
        members = mini_batch_rows(batch.groups, len(parts[3]) - 1)
        masks = [members[index][:, None] for index in masked]
        mask = batch.tokens.mask & ~sum(masks).bool()
        weights = batch.tokens.loss_weights * mask
        entropy = own.scores([s.group for s in parts[3]]).entropy[mask].mean().item()
        tokens = replace(batch.tokens, mask=mask, loss_weights=weights)
        (learning,) = (mini_batch.learning for mini_batch in batch.mini_batches)
        mini_batches = tuple(MiniBatch(rows & learning) for rows in members)
        stats = own.update(replace(batch, tokens=tokens, mini_batches=mini_batches))
        coefficients = Coefficients(config)
        coefficients.adapt(dict(stats))
        return stats, entropy, coefficients

    stats, entropy, coefficients = updated((1,))
    assert stats["entropy"] == pytest.approx(entropy, rel=0.05)  # it moves in the second pass
    assert coefficients.entropy != 0.01  # it is not the target
    stats, _, coefficients = updated((0, 1))
    assert not {"entropy", "kl"} & stats.keys()
    assert coefficients.entropy == 0.01


def test_several_updates_keep_the_log_probs_they_started_from(parts):
    config = AlgorithmConfig(ppo_epochs=3)
    own, _ = policy(parts, config, lr=1e-2)
    batch = experience(parts, config, own)
    assert batch.tokens.old_logprobs is not None
    torch.testing.assert_close(batch.tokens.old_logprobs, own.logprobs([s.group for s in parts[3]]))
    stats = own.update(batch)
    assert own.version == 3
    assert stats["loss/clip_fraction"] > 0  # the policy has moved away from them


@pytest.mark.parametrize("broken", [float("nan"), float("inf")])
def test_a_number_that_is_not_finite_stops_before_the_step(parts, broken):
    config = AlgorithmConfig()
    own, model = policy(parts, config)
    batch = experience(parts, config, own)
    batch.tokens.advantages[0, 0] = broken
    before = {n: p.clone() for n, p in model.named_parameters()}
    with pytest.raises(NonFiniteError, match="weights were not changed"):
        own.update(batch)
    assert all(torch.equal(p, before[n]) for n, p in model.named_parameters())


def test_a_gradient_that_is_not_finite_stops_before_the_step(parts):
    _, model, _, _ = parts
    own = copy.deepcopy(model)
    optimizer = Optimizer(own, OptimizerConfig(), 10)
    for parameter in own.parameters():
        parameter.grad = torch.zeros_like(parameter)
    own.lm_head.weight.grad[0, 0] = float("nan")
    with pytest.raises(NonFiniteError, match="norm is nan"):
        optimizer.step()
    assert all(torch.equal(a, b) for a, b in zip(own.parameters(), model.parameters(), strict=True))
