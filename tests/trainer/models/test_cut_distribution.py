"""Policies that learn from what a cut distribution sampled: engine and trainer on one support."""

from __future__ import annotations

import copy
import math
from dataclasses import replace
from functools import partial

import pytest
import torch
from transformers import AutoModelForImageTextToText

from mmr1.algorithms.ratios import rollout_importance_weights
from mmr1.config import AlgorithmConfig, OptimizerConfig, SamplingConfig
from mmr1.rollout.distribution import Distribution
from mmr1.rollout.hf import HfEngine
from mmr1.trainer.algorithm import build_algorithm
from mmr1.trainer.forward.sequences import ModelInputs, group_input
from mmr1.trainer.models.optimizer import Optimizer
from mmr1.trainer.models.packed_model import PackedModel
from mmr1.trainer.models.policy import LocalPolicy
from mmr1.trainer.runs.step import support_stats
from mmr1.trainer.sampling.experience import Models, build_experience
from mmr1.types import Reward, RolloutGroup, ScoredGroup
from mmr1.vision.families.loading import load_family
from mmr1.vision.prepare import MediaCache
from tests.asking import asks, completed
from tests.padded_forward import padded_scores
from tests.trainer.gradients import caught_gradient

CUTS = {
    "top_p": {"top_p": 0.5},
    "top_p_temperature": {"top_p": 0.9, "temperature": 0.6},
    "top_k": {"top_k": 5},
    "min_p": {"min_p": 0.2},
    "uncut": {"temperature": 0.7},
}


@pytest.fixture(scope="module")
def parts(tiny_model):
    family = load_family(str(tiny_model))
    model = AutoModelForImageTextToText.from_pretrained(tiny_model, dtype=torch.float32)
    with torch.no_grad():
        model.lm_head.weight.mul_(20)  # as sure of some tokens as a trained model
    return family, model, MediaCache(family.prepare_media)


@pytest.fixture(scope="module")
def sampled(parts, digit_samples):
    """Scored groups of each distribution, from the transformers engine with the same weights."""
    family, model, media = parts
    prompts = [family.render_prompt(sample) for sample in digit_samples[:2]]
    engine = HfEngine(model, family, media)

    def sample(cut: dict[str, float]) -> list[ScoredGroup]:
        sampling = SamplingConfig(max_tokens=24, **cut)
        groups = completed(engine, [asks(p, 4, s) for s, p in enumerate(prompts)], sampling)
        rewards = tuple(Reward(float(n % 2)) for n in range(4))
        return [ScoredGroup(group, rewards) for group in groups]

    return {name: sample(cut) for name, cut in CUTS.items()}


def updated(parts, scored, cut, config=None, **correction):
    """Statistics and gradient of an update on these groups; no step is taken."""
    family, model, media = parts
    own = copy.deepcopy(model)
    distribution = Distribution.of(SamplingConfig(**cut), family.forbidden_ids)
    packed = PackedModel(own, ModelInputs(family, media), distribution, 100)
    optimizer = Optimizer(own, OptimizerConfig(), 10)
    caught = caught_gradient(own, optimizer)
    algorithm = build_algorithm(config or AlgorithmConfig(name="grpo"))
    weights = partial(rollout_importance_weights, **correction) if correction else None
    policy = LocalPolicy(packed, algorithm, optimizer, 1, correction=weights)
    return policy.update(build_experience(scored, algorithm, Models(policy))), caught


def norm(gradient):
    return math.sqrt(sum(float(g.square().sum()) for g in gradient.values()))


@pytest.mark.parametrize("name", CUTS)
def test_importance_weight_is_one_on_policy(parts, sampled, name):
    """Tokens with a single kept id, whose log-prob is 0 anyway, do not hide a gap."""
    stats, _ = updated(parts, sampled[name], CUTS[name], form="token", cap=math.inf, outlier=None)
    statistic = "mean" if name == "uncut" else "several_ids"
    assert stats[f"rollout/logprob_diff_{statistic}"] < 1e-4
    assert stats["rollout/logprob_diff_max"] < 1e-4
    assert abs(stats[f"rollout/importance_weight_{statistic}"] - 1) < 1e-5
    if name != "uncut":
        assert 0 < stats["policy/kept_mass_mean"] < 0.97


@pytest.mark.parametrize("name", [name for name in CUTS if name != "uncut"])
def test_trainer_without_the_kept_ids_is_off_by_their_mass(parts, sampled, name):
    """Over the whole vocabulary the weight is the kept mass, and the gradient another one."""
    whole = [replace(s, group=without_support(s.group)) for s in sampled[name]]
    uncut = {"temperature": CUTS[name].get("temperature", 1.0)}
    correction = {"form": "token", "cap": math.inf, "outlier": None}
    stats, gradient = updated(parts, whole, uncut, **correction)
    right, wanted = updated(parts, sampled[name], CUTS[name], **correction)
    assert stats["rollout/importance_weight_mean"] == pytest.approx(
        right["policy/kept_mass_mean"], abs=1e-4
    )
    off = {name: gradient[name] - wanted[name] for name in wanted}
    assert norm(off) > 0.05 * norm(wanted)


def without_support(group: RolloutGroup) -> RolloutGroup:
    return replace(group, completions=tuple(replace(c, support=None) for c in group.completions))


@pytest.mark.parametrize("name", CUTS)
def test_gradient_equals_autograd_over_the_cut_distribution(parts, sampled, name):
    family, model, media = parts
    _, gradient = updated(parts, sampled[name], CUTS[name])
    own = copy.deepcopy(model)
    inputs = [group_input(family, media, s.group) for s in sampled[name]]
    distribution = Distribution.of(SamplingConfig(**CUTS[name]), family.forbidden_ids)
    logprobs = padded_scores(own, inputs, distribution).logprobs
    rewards = torch.tensor([[r.value for r in s.rewards] for s in sampled[name]])
    centred = rewards - rewards.mean(1, keepdim=True)
    advantages = (centred / (rewards.std(1, keepdim=True) + 1e-6)).flatten()
    tokens = sum(len(c.token_ids) for s in sampled[name] for c in s.group.completions)
    (-(advantages[:, None] * logprobs).sum() / tokens).backward()
    for parameter, p in own.named_parameters():
        scale = max(1.0, float(p.grad.abs().max()))
        assert (gradient[parameter] - p.grad).abs().max() <= 2e-5 * scale, parameter


def test_token_rejection_keeps_on_policy_tokens(parts, sampled):
    """Over the whole vocabulary every ratio of top-p 0.5 lies outside the band: no gradient."""
    cut, rejects = (
        CUTS["top_p"],
        {
            "form": "none",
            "cap": math.inf,
            "outlier": 1.05,
            "outlier_form": "token",
        },
    )
    _, gradient = updated(parts, sampled["top_p"], cut, **rejects)
    _, unrejected = updated(parts, sampled["top_p"], cut)
    assert norm(gradient) == pytest.approx(norm(unrejected), rel=1e-5)


def test_completions_without_kept_ids_are_refused(parts, sampled):
    """An engine that cuts and does not say what it kept would shift every ratio."""
    whole = [replace(s, group=without_support(s.group)) for s in sampled["top_p"]]
    with pytest.raises(ValueError, match=r"rollout.top_p.*Completion.support"):
        updated(parts, whole, CUTS["top_p"])


def test_token_outside_its_own_support_is_refused(parts, sampled):
    family, _, media = parts
    group = sampled["top_k"][0].group
    first = group.completions[0]
    ids = first.token_ids.copy()
    ids[3] = next(i for i in range(100) if i not in first.support.ids)
    with pytest.raises(ValueError, match="not among the ids that it kept"):
        group_input(family, media, replace(group, completions=(replace(first, token_ids=ids),)))


def test_statistics_of_kept_ids_are_over_cut_tokens(sampled):
    completions = [c for s in sampled["top_k"] for c in s.group.completions]
    stats = support_stats(completions)
    assert stats == {
        "rollout/kept_ids_mean": 5,
        "rollout/kept_ids_p99": 5,
        "rollout/frac_single_id": 0,
    }
    assert support_stats([c for s in sampled["uncut"] for c in s.group.completions]) == {}
