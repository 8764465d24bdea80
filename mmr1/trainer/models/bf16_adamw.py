"""AdamW whose moments are kept in bfloat16: half of their memory.

A second moment moves by a thousandth of itself in a step (beta2 = 0.999), and bfloat16 holds steps
of a hundred and twenty-eighth: rounded to the nearest it would never fall again. It is rounded at
random instead, up or down by how near each neighbour is, so that it is right on average
(Gupta et al., arXiv:1502.02551; for bfloat16 training, Zamirai et al., arXiv:2010.06192).
"""

from __future__ import annotations

import torch
from torch.optim.adamw import adamw

MOMENTS = ("exp_avg", "exp_avg_sq")
_LOWER_BITS = 16  # of float32, those that bfloat16 has not


@torch.no_grad()
def step(optimizer: torch.optim.AdamW) -> None:
    """``optimizer.step()``, a parameter at a time: one pair of float32 moments exists at once.

    The state of each parameter must be there (``exp_avg``, ``exp_avg_sq`` bfloat16, ``step``).
    """
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            if parameter.grad is None:
                continue
            state = optimizer.state[parameter]
            moments = [state[name].float() for name in MOMENTS]
            adamw(
                [parameter],
                [parameter.grad],
                [moments[0]],
                [moments[1]],
                [],
                [state["step"]],
                fused=optimizer.defaults["fused"],
                amsgrad=False,
                beta1=group["betas"][0],
                beta2=group["betas"][1],
                lr=group["lr"],
                weight_decay=group["weight_decay"],
                eps=group["eps"],
                maximize=False,
            )
            for name, moment in zip(MOMENTS, moments, strict=True):
                state[name].copy_(stochastic_round(moment))


def stochastic_round(values: torch.Tensor) -> torch.Tensor:
    """float32 to bfloat16, to either neighbour with the probability that keeps the mean."""
    bits = values.view(torch.int32)
    noise = torch.randint_like(bits, 1 << _LOWER_BITS)
    return ((bits + noise) >> _LOWER_BITS << _LOWER_BITS).view(torch.float32).to(torch.bfloat16)
