"""GMPO, TOPR, VESPO and DPPO against plain loops, away from the policy that sampled."""

from __future__ import annotations

import math
from collections.abc import Sequence

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from mmr1.algorithms import LossInputs, loss

NUMBER = st.floats(-3, 3, width=32)
COMPLETION = st.lists(st.tuples(NUMBER, NUMBER), min_size=1, max_size=5)


def of_tokens(name: str, tokens: Sequence[tuple[float, float]], advantage: float, **keys):
    """The token losses of one completion beside a padded token, and their gradient."""
    new = torch.tensor([[-abs(n) for n, _ in tokens] + [7.0]], dtype=torch.float64)
    new.requires_grad_()
    old = torch.tensor([[-abs(o) for _, o in tokens] + [-7.0]], dtype=torch.float64)
    mask = torch.arange(new.shape[1])[None] < len(tokens)
    advantages = advantage * mask.double()
    part = loss.parts[name]
    x = LossInputs(new, old, advantages, torch.zeros_like(old), mask)
    made = torch.where(mask, loss.build(part.section(**keys)).of_tokens(x), 0.0)
    (gradient,) = torch.autograd.grad(made.sum(), new, allow_unused=True)
    return made[0, :-1].tolist(), gradient[0, :-1].tolist()


@given(COMPLETION, st.sampled_from([-1.5, 0.5]))
def test_gmpo_is_geometric_mean_of_clipped_ratios(tokens, advantage):
    logs = []
    for n, o in tokens:
        log_ratio = abs(o) - abs(n)
        logs.append(min(log_ratio, 0.4) if advantage > 0 else max(log_ratio, -0.4))
    wanted = -advantage * math.exp(sum(logs) / len(logs))
    made, _ = of_tokens("gmpo", tokens, advantage)
    assert made == pytest.approx([wanted] * len(tokens))


@given(COMPLETION, st.sampled_from([-1.5, 0.5]))
def test_topr_tapers_gradient_of_worse_completions(tokens, advantage):
    """The gradient of each log-prob is -alpha A, and alpha has none of its own."""
    ratio = math.exp(sum(abs(o) - abs(n) for n, o in tokens))
    alpha = min(1.0, ratio) if advantage < 0 else 1.0
    _, gradient = of_tokens("topr", tokens, advantage)
    assert gradient == pytest.approx([-alpha * advantage] * len(tokens))


@given(COMPLETION, st.sampled_from([-1.5, 0.5]))
def test_vespo_weights_gradient_by_gamma_density(tokens, advantage):
    """phi(w) = w^k exp(lambda (1 - w)) of the product of ratios, without a gradient of its own."""
    ratio = 1.0
    for n, o in tokens:
        ratio *= math.exp(abs(o) - abs(n))
    k, decay = (2.0, 3.0) if advantage > 0 else (3.0, 2.0)
    phi = ratio**k * math.exp(decay) / math.exp(decay * ratio) if ratio < 200 else 0.0
    _, gradient = of_tokens("vespo", tokens, advantage)
    assert gradient == pytest.approx([-phi * advantage] * len(tokens), abs=1e-12)


@given(COMPLETION, st.sampled_from([-1.5, 0.5]), st.sampled_from([0.05, 0.3]))
def test_dppo_masks_tokens_that_moved_too_far(tokens, advantage, delta):
    wanted = []
    for n, o in tokens:
        p, q = math.exp(-abs(n)), math.exp(-abs(o))
        far = p - q > delta if advantage > 0 else q - p > delta
        wanted.append(0.0 if far else -advantage * p / q)
    made, gradient = of_tokens("dppo", tokens, advantage, delta=delta)
    assert made == pytest.approx(wanted)
    assert gradient == pytest.approx(wanted)  # of a ratio it is the ratio
