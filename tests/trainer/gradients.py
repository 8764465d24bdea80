"""The gradient that a step accumulates, against another model's."""

from __future__ import annotations

import torch

from mmr1.trainer.models.optimizer import Optimizer


def caught_gradient(model: torch.nn.Module, optimizer: Optimizer) -> dict[str, torch.Tensor]:
    """Filled with the accumulated gradient when the optimizer is asked to step."""
    caught: dict[str, torch.Tensor] = {}

    def step() -> dict[str, float]:
        trained = {n: p for n, p in model.named_parameters() if p.grad is not None}
        caught.update({n: p.grad.clone() for n, p in trained.items()})
        return {"grad_norm": 0.0, "lr": 0.0}

    optimizer.step = step  # type: ignore[method-assign]
    return caught


def assert_gradient(gradients: dict[str, torch.Tensor], model: torch.nn.Module) -> None:
    expected = {n: p.grad for n, p in model.named_parameters() if p.grad is not None}
    assert expected.keys() == gradients.keys()
    for name, gradient in expected.items():
        scale = max(1.0, gradient.abs().max().item())
        assert (gradients[name] - gradient).abs().max() < 1e-5 * scale, name
