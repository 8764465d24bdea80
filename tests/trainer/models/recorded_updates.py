"""Updates that record their optimizer steps."""

from __future__ import annotations

import torch

Gradients = list[dict[str, torch.Tensor]]


def recorded(own, model) -> Gradients:
    """The gradient of every optimizer step to come; no step is taken."""
    gradients: Gradients = []

    def step() -> dict[str, float]:
        gradients.append(
            {n: p.grad.clone() for n, p in model.named_parameters() if p.requires_grad}
        )
        own.optimizer.zero_grad()
        return {"grad_norm": 0.0, "lr": 0.0}

    own.optimizer.step = step
    return gradients
