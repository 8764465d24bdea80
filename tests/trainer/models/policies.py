"""A small policy, its experience, and gradients computed naively."""

from __future__ import annotations

import copy

import torch

from mmr1.config import AlgorithmConfig, OptimizerConfig
from mmr1.rollout.distribution import Distribution
from mmr1.trainer.algorithm import build_algorithm
from mmr1.trainer.forward.sequences import ModelInputs, group_input
from mmr1.trainer.models.optimizer import Optimizer
from mmr1.trainer.models.packed_model import PackedModel
from mmr1.trainer.models.policy import LocalPolicy
from mmr1.trainer.sampling.experience import Models, build_experience
from tests.padded_forward import padded_scores


def policy(parts, config: AlgorithmConfig, budget: int = 10_000, lr: float = 1e-3):
    """A policy with its own copy of the model, and that copy."""
    family, model, media, _ = parts
    own = copy.deepcopy(model)
    packed_model = PackedModel(
        own, ModelInputs(family, media), Distribution(forbidden=family.forbidden_ids), budget
    )
    optimizer = Optimizer(
        own, OptimizerConfig(lr=lr, max_grad_norm=1000000000.0, scheduler={"warmup_steps": 0}), 10
    )
    return LocalPolicy(packed_model, build_algorithm(config), optimizer, config.ppo_epochs), own


def experience(parts, config: AlgorithmConfig, own: LocalPolicy, reference=None):
    return build_experience(parts[3], build_algorithm(config), Models(own, reference))


def naive_gradient(parts, loss_agg_mode: str, advantages: list[list[float]]):
    """``-sum of A log p`` over padded rows, averaged as the paper writes it, by autograd."""
    family, model, media, scored = parts
    own = copy.deepcopy(model)
    inputs = [group_input(family, media, s.group) for s in scored]
    logprobs = padded_scores(own, inputs, Distribution(forbidden=family.forbidden_ids)).logprobs
    lengths = [len(c.token_ids) for s in scored for c in s.group.completions]
    flat = [a for row in advantages for a in row]
    loss = torch.zeros(())
    for row, length, advantage in zip(logprobs, lengths, flat, strict=True):
        share = length * len(flat) if loss_agg_mode == "seq-mean-token-mean" else sum(lengths)
        loss = loss - advantage * row[:length].sum() / share
    loss.backward()
    return {n: p.grad for n, p in own.named_parameters()}


def assert_close(actual, expected, tolerance=1e-5):
    for name, gradient in expected.items():
        error = (actual[name] - gradient).abs().max().item()
        assert error <= tolerance * max(1.0, gradient.abs().max().item()), (name, error)
