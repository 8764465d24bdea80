"""The KL over the whole vocabulary: against matrices of logits, and in a policy's update."""

from __future__ import annotations

import copy
from dataclasses import replace

import pytest
import torch

from mmr1.config import AlgorithmConfig, NewLoraConfig, OptimizerConfig
from mmr1.config.file import load_config
from mmr1.rollout.distribution import Distribution
from mmr1.trainer.algorithm import build_algorithm
from mmr1.trainer.forward.logprob_head import Distributions, token_kl
from mmr1.trainer.forward.scores import completion_states
from mmr1.trainer.forward.sequences import ModelInputs, group_input
from mmr1.trainer.models.lora import add_adapters
from mmr1.trainer.models.optimizer import Optimizer
from mmr1.trainer.models.packed_model import PackedModel
from mmr1.trainer.models.policy import LocalPolicy
from mmr1.trainer.models.reference import AdapterReference, FrozenReference
from mmr1.trainer.sampling.experience import Models, build_experience
from tests.trainer.forward.kl_heads import moved, naive
from tests.trainer.gradients import assert_gradient, caught_gradient


@pytest.mark.parametrize("chunk", [1, 60, 1 << 20])
@pytest.mark.parametrize(("temperature", "forbidden"), [(1.0, ()), (0.7, (0, 5, 29))])
@pytest.mark.parametrize("beta", [0.0, 0.1, 0.5, 1.0])
def test_it_and_its_gradient_equal_those_of_all_logits(chunk, temperature, forbidden, beta):
    torch.manual_seed(0)
    sizes = ((7, 8), (30, 8), (7, 8), (30, 8))
    ours = [torch.randn(*size, requires_grad=True) for size in sizes]
    theirs = [t.detach().clone().requires_grad_() for t in ours]
    distribution = Distribution(temperature, forbidden=forbidden)
    actual = token_kl(
        Distributions(*ours[:2]), Distributions(*ours[2:]), distribution, None, chunk, beta
    )
    expected = naive(*theirs, temperature, forbidden, beta)
    torch.testing.assert_close(actual, expected, atol=1e-5, rtol=1e-5)
    each = torch.randn(7)
    (actual * each).sum().backward()
    (expected * each).sum().backward()
    for mine, other in zip(ours[:2], theirs[:2], strict=True):
        torch.testing.assert_close(mine.grad, other.grad, atol=1e-5, rtol=1e-5)
    assert ours[2].grad is None  # the reference is a constant


@pytest.mark.parametrize("budget", [1, 10_000])
def test_in_an_update_it_is_the_mean_over_tokens(parts, budget):
    family, model, media, scored = parts
    own = copy.deepcopy(model)
    packed_model = PackedModel(
        own, ModelInputs(family, media), Distribution(forbidden=family.forbidden_ids), budget
    )
    reference = FrozenReference(packed_model, replace(packed_model, model=moved(model)))
    config = AlgorithmConfig(name="rloo", kl={"type": "full", "coef": 0.5})
    algorithm = build_algorithm(config)
    optimizer = Optimizer(own, OptimizerConfig(), 10)
    actual = caught_gradient(own, optimizer)
    policy = LocalPolicy(packed_model, algorithm, optimizer, 1, reference)
    batch = build_experience(scored, algorithm, Models(policy, reference))
    assert batch.tokens.ref_logprobs is None
    batch.tokens.advantages.zero_()  # leaves the KL alone
    stats = policy.update(batch)

    plain = copy.deepcopy(model)
    inputs = [group_input(family, media, s.group) for s in scored]
    hidden = completion_states(plain, inputs).hidden
    ref_hidden = completion_states(moved(model), inputs).hidden
    heads = (plain.lm_head.weight, moved(model).lm_head.weight)
    kl = naive(hidden, heads[0], ref_hidden, heads[1], forbidden=family.forbidden_ids).mean()
    (0.5 * kl).backward()
    assert stats["kl"] == pytest.approx(kl.item(), rel=1e-4)
    assert stats["loss"] == pytest.approx(0.5 * kl.item(), rel=1e-4)
    assert_gradient(actual, plain)


def test_adapters_are_measured_against_the_model_without_them(parts):
    family, model, media, scored = parts
    torch.manual_seed(0)
    own = add_adapters(copy.deepcopy(model), NewLoraConfig(rank=4, dropout=0.1), False)
    packed_model = PackedModel(
        own, ModelInputs(family, media), Distribution(forbidden=family.forbidden_ids), 100
    )
    reference = AdapterReference(packed_model)
    config = AlgorithmConfig(kl={"type": "full", "coef": 0.1})
    algorithm = build_algorithm(config)
    optimizer = Optimizer(own, OptimizerConfig(lr=0.01, scheduler={"warmup_steps": 0}), 10)
    policy = LocalPolicy(packed_model, algorithm, optimizer, 1, reference)
    kl = [
        policy.update(build_experience(scored, algorithm, Models(policy, reference)))["kl"]
        for _ in range(2)
    ]
    assert kl[0] == pytest.approx(0, abs=1e-6) != kl[1]
    assert kl[1] > 1e-4
    assert own.training  # measuring the reference left the policy as it was: with dropout


def test_it_is_no_reward():
    keys = ["model.path=a", "algorithm.kl.type=full", "algorithm.kl.coef=0.1"]
    with pytest.raises(ValueError, match="type 'full' has no 'estimator'"):
        load_config(None, [*keys, "algorithm.kl.estimator=k1"])
