"""Comparison of log-probs and gradients of two forwards."""

from __future__ import annotations

import torch

TOLERANCE = 1e-5


def gradients(model, scores):
    """Of every token of both outputs, each with a weight of its own."""
    generator = torch.Generator().manual_seed(0)
    weights = torch.randn(2, *scores.logprobs.shape, generator=generator)
    model.zero_grad()
    ((scores.logprobs * weights[0]).sum() + (scores.entropy * weights[1]).sum()).backward()
    return {n: p.grad.clone() for n, p in model.named_parameters() if p.grad is not None}


def assert_same(model, actual, expected):
    """Values, then gradients: equal to 1e-5, of a gradient's largest entry where it is above 1."""
    torch.testing.assert_close(actual.logprobs, expected.logprobs, atol=TOLERANCE, rtol=0)
    torch.testing.assert_close(actual.entropy, expected.entropy, atol=TOLERANCE, rtol=0)
    wanted, got = gradients(model, expected), gradients(model, actual)
    assert got.keys() == wanted.keys()
    for name, gradient in wanted.items():
        scale = max(1.0, gradient.abs().max().item())
        error = (got[name] - gradient).abs().max().item()
        assert error <= TOLERANCE * scale, f"{name}: off by {error} with entries up to {scale}"
