"""Ratios and KL estimates far from 1 and 0: bounded as in verl and EasyR1, and counted."""

from __future__ import annotations

import math

import pytest
import torch

from mmr1.algorithms import kl, ratios
from mmr1.algorithms.interface import LossInputs
from mmr1.config import AlgorithmConfig
from mmr1.trainer.algorithm import build_algorithm

DISTANCES = [0.5, -0.5, 5.0, -5.0, 39.0, -39.0, 99.0, -99.0]


def plain_k3(d: float) -> float:
    """verl's and EasyR1's low_var_kl: d within 20, the estimate within 10."""
    d = min(max(d, -20.0), 20.0)
    return min(max(math.exp(d) - d - 1, -10.0), 10.0)


@pytest.mark.parametrize("distance", DISTANCES)
def test_k3_is_that_of_verl_and_its_gradient_is_bounded(distance):
    logprobs = torch.tensor([-1.0], dtype=torch.float64, requires_grad=True)
    estimate = kl.k3(logprobs, logprobs.detach() + distance)
    assert estimate.item() == pytest.approx(plain_k3(distance))
    estimate.sum().backward()
    # Unbounded it is 1 - exp(d): 9e16 at d = 39, and infinite at d = 99 in float32.
    inside = -20 < distance < 20 and plain_k3(distance) < 10
    expected = 1 - math.exp(distance) if inside else 0.0
    assert logprobs.grad.item() == pytest.approx(expected)
    held = kl.bounded(logprobs, logprobs.detach() + distance, "k3")
    assert held.item() == (not inside)


@pytest.mark.parametrize("name", ["k1_forward", "k3_forward"])
def test_the_other_direction_is_bounded_too(name):
    d = torch.tensor(DISTANCES)
    logprobs = torch.zeros(len(d), requires_grad=True)
    estimate = kl.ESTIMATORS[name](logprobs, d)
    estimate.sum().backward()
    assert estimate.abs().max() <= 10
    assert logprobs.grad.abs().max() < 100
    assert kl.bounded(logprobs, d, name).tolist() == [False] * 2 + [True, False] + [True] * 4


@pytest.mark.parametrize("advantage", [1.0, -1.0])
@pytest.mark.parametrize("distance", DISTANCES)
def test_no_ratio_overflows(advantage, distance):
    """The surrogate of EasyR1: the logarithm of the ratio within 20."""
    rho = math.exp(min(max(distance, -20.0), 20.0))
    expected = -min(rho * advantage, min(max(rho, 0.8), 1.2) * advantage)
    old, a = torch.zeros(1, 1), torch.full((1, 1), advantage)
    for loss in (ratios.ppo_clip, ratios.cispo):
        logprobs = torch.full((1, 1), distance, requires_grad=True)
        value = loss(logprobs, old, a, 0.2, 0.2)
        value.sum().backward()
        assert torch.isfinite(logprobs.grad).all()
        if loss is ratios.ppo_clip:
            assert value.item() == pytest.approx(expected)
    mask = torch.ones(1, 1, dtype=torch.bool)
    for form in ("token", "per_decision", "sequence"):
        weight = ratios.importance_weights(torch.full((1, 1), distance), old, mask, form)
        assert weight.item() == pytest.approx(rho)


def test_distance_at_the_bound_still_has_a_gradient():
    """A bound is reached beyond it: where autograd finds no gradient, a token counts as bounded."""
    new = torch.tensor([[20.0, 20.5, -20.0, -20.5]], requires_grad=True)
    old = torch.zeros(1, 4)
    ratios.ratio(new, old).sum().backward()
    x = LossInputs(new.detach(), old, old + 1.0, old, torch.ones(1, 4, dtype=torch.bool))
    counted = build_algorithm(AlgorithmConfig()).metrics(x)["loss/frac_ratio_clamped"]
    assert counted.bool().tolist() == (new.grad == 0).tolist() == [[False, True, False, True]]
    ref = torch.tensor([[-20.0, -20.5]])
    logprobs = torch.zeros(1, 2, requires_grad=True)
    kl.k3_forward(logprobs, ref).sum().backward()  # r d - (r - 1) is near 1 there, no bound of it
    held = kl.bounded(logprobs.detach(), ref, "k3_forward")
    assert held.tolist() == (logprobs.grad == 0).tolist() == [[False, True]]


def test_how_often_a_bound_held_is_logged():
    config = AlgorithmConfig(kl={"coef": 0.1})
    old = torch.zeros(1, 4)
    inputs = LossInputs(
        logprobs=torch.tensor([[0.1, 21.0, -21.0, 0.1]]),
        old_logprobs=old,
        advantages=torch.ones(1, 4),
        entropy=old,
        mask=torch.ones(1, 4, dtype=torch.bool),
        ref_logprobs=torch.tensor([[0.0, 21.0, -21.0, 99.0]]),
    )
    metrics = build_algorithm(config).metrics(inputs)
    assert metrics["loss/frac_ratio_clamped"].tolist() == [[0.0, 1.0, 1.0, 0.0]]
    assert metrics["loss/frac_kl_clamped"].tolist() == [[0.0, 0.0, 0.0, 1.0]]
    torch.testing.assert_close(metrics["ppo_kl"], torch.tensor([[-0.1, -21.0, 21.0, -0.1]]))
