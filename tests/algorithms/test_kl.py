"""KL estimators against hand-worked numbers and exact sums over a vocabulary."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from mmr1.algorithms import kl, ratios
from mmr1.algorithms.interface import LossInputs
from mmr1.config import AlgorithmConfig
from mmr1.config.file import load_config
from mmr1.trainer.algorithm import build_algorithm
from mmr1.trainer.coefficients import (
    Coefficients,
    adapted_coefficient,
    adapted_entropy_coefficient,
)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("k1", -math.log(2)),
        ("k2", math.log(2) ** 2 / 2),
        ("k3", 2 - math.log(2) - 1),
        ("absolute", math.log(2)),
        ("k1_forward", 2 * math.log(2)),
        ("k3_forward", 2 * math.log(2) - 1),
    ],
)
def test_by_hand(name, expected):
    # p = 1/4, reference 1/2: ratio 2, d = log 2.
    actual = kl.ESTIMATORS[name](torch.tensor(math.log(0.25)), torch.tensor(math.log(0.5)))
    assert float(actual) == pytest.approx(expected, abs=1e-6)


def test_full_by_hand():
    # 1/2 log(1/2 / 1/4) + 1/2 log(1/2 / 3/4)
    p, q = torch.tensor([0.5, 0.5]).log(), torch.tensor([0.25, 0.75]).log()
    assert float(kl.full(p, q)) == pytest.approx(0.5 * math.log(2) + 0.5 * math.log(2 / 3))
    certain = torch.tensor([0.0, -torch.inf])
    assert float(kl.full(certain, q)) == pytest.approx(math.log(4))


def distributions(seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(2, 8, generator=generator, dtype=torch.float64)
    p, q = (logits / 5).log_softmax(-1)  # closer than the bound of the estimators
    return p, q


@settings(deadline=None, max_examples=40)
@given(st.integers(0, 10_000))
def test_k1_and_k3_are_unbiased_and_k2_k3_never_negative(seed):
    p, q = distributions(seed)
    backward = sum(math.exp(a) * (a - b) for a, b in zip(p.tolist(), q.tolist(), strict=True))
    forward = sum(math.exp(b) * (b - a) for a, b in zip(p.tolist(), q.tolist(), strict=True))
    assert float(kl.full(p, q)) == pytest.approx(backward)
    for name, exact in (
        ("k1", backward),
        ("k3", backward),
        ("k1_forward", forward),
        ("k3_forward", forward),
    ):
        mean = (p.exp() * kl.ESTIMATORS[name](p, q)).sum()  # over all tokens, by probability
        assert float(mean) == pytest.approx(exact), name
    for name in ("k2", "k3", "k3_forward", "absolute"):
        assert (kl.ESTIMATORS[name](p, q) >= 0).all(), name


@settings(deadline=None, max_examples=40)
@given(st.integers(0, 10_000))
def test_which_estimators_have_the_gradient_of_the_kl(seed):
    """In a loss k2's expected gradient is the KL's, k1's is 0 and k3's is the other direction's."""
    start, q = distributions(seed)

    def gradient(loss_of) -> torch.Tensor:
        logits = start.clone().requires_grad_()
        loss_of(logits.log_softmax(-1)).backward()
        return logits.grad

    def expected(name: str) -> torch.Tensor:
        return gradient(lambda p: (p.detach().exp() * kl.ESTIMATORS[name](p, q)).sum())

    torch.testing.assert_close(expected("k2"), gradient(lambda p: kl.full(p, q)))
    torch.testing.assert_close(expected("k3"), gradient(lambda p: kl.full(q, p)))
    torch.testing.assert_close(expected("k1"), torch.zeros(8, dtype=torch.float64))


def test_the_kl_coefficient_follows_the_target():
    # 1 + 0.1 * clip(x / target - 1, -0.2, 0.2)
    for measured, factor in ((0.05, 1.02), (0.011, 1.01), (0.01, 1.0), (0.0, 0.98)):
        actual = adapted_coefficient(0.5, measured, 0.01, 0.1)
        assert actual == pytest.approx(0.5 * factor), measured


@settings(deadline=None, max_examples=20)
@given(st.integers(0, 10_000))
def test_the_kl_of_whole_completions(seed):
    """The R1 paper: ``ref(o) / p(o) - log(ref(o) / p(o)) - 1``, the mean over completions."""
    generator = torch.Generator().manual_seed(seed)
    shape, lengths = (4, 5), torch.randint(1, 6, (4, 1), generator=generator)
    mask = torch.arange(5) < lengths
    new = (-torch.rand(shape, generator=generator, dtype=torch.float64)).requires_grad_()
    ref = new.detach() + torch.randn(shape, generator=generator, dtype=torch.float64) / 4
    config = AlgorithmConfig(loss="sequence_ppo", kl={"coef": 0.2})
    zeros = torch.zeros_like(ref)
    inputs = LossInputs(new, new.detach(), zeros, zeros, mask, ref, kl_coef=0.2)
    algorithm = build_algorithm(config)
    weights = ratios.token_weights(mask, algorithm.loss_agg_mode).double()
    actual = (weights * algorithm.loss(inputs, 0.0)).sum()
    total = torch.zeros((), dtype=torch.float64)
    for row, length in enumerate(lengths[:, 0].tolist()):
        d = sum(ref[row, t] - new[row, t] for t in range(length))
        total = total + 0.2 * (torch.exp(d) - d - 1) / 4
    torch.testing.assert_close(actual, total)
    gradients = [torch.autograd.grad(x, new, retain_graph=True)[0] for x in (actual, total)]
    torch.testing.assert_close(*gradients)
    assert not algorithm.metrics(inputs)["loss/frac_kl_clamped"].any()


def test_the_kl_to_the_sampling_policy_needs_two_updates():
    keys = ["model.path=a", "data.train_batch_size=4", "algorithm.name=kl_cov"]
    with pytest.raises(ValueError, match=r"only update of a rollout .* set ppo_mini_batch_size"):
        load_config(None, [*keys, "algorithm.ppo_mini_batch_size=4"])
    load_config(None, [*keys, "algorithm.ppo_mini_batch_size=2"])


def test_the_entropy_coefficient_follows_the_target():
    assert adapted_entropy_coefficient(0.1, 0.5, 1.0, 0.2) == pytest.approx(0.1 * math.exp(0.1))
    assert adapted_entropy_coefficient(0.1, 2.0, 1.0, 0.2) == pytest.approx(0.1 * math.exp(-0.2))


def test_terms_that_are_off_have_coefficient_zero():
    off, stats = Coefficients(AlgorithmConfig()), {}
    off.adapt(stats)
    assert stats == {"kl_coef": 0.0, "entropy_coef": 0.0}


def test_coefficients_adapt_only_towards_a_target():
    fixed = Coefficients(AlgorithmConfig(kl={"coef": 0.1}, entropy={"coef": 0.2}))
    stats = {"kl": 5.0, "entropy": 0.0}
    fixed.adapt(stats)
    assert (fixed.kl, fixed.entropy) == (0.1, 0.2)
    assert stats["kl_coef"] == 0.1
    moved = Coefficients(
        AlgorithmConfig(kl={"coef": 0.1, "target": 0.01}, entropy={"coef": 0.2, "target": 1.0})
    )
    moved.adapt({"kl": 5.0, "entropy": 0.0})
    assert moved.kl == pytest.approx(0.102)
    assert moved.entropy == pytest.approx(0.2 * math.exp(0.1))
    resumed = Coefficients(AlgorithmConfig(kl={"coef": 0.1, "target": 0.01}))
    resumed.load_state_dict(moved.state_dict())
    assert resumed.state_dict() == moved.state_dict()
