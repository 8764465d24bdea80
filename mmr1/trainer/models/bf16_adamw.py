"""AdamW whose moments are kept in bfloat16: half of their memory.

A second moment moves by a thousandth of itself in a step (beta2 = 0.999), and bfloat16 holds steps
of a hundred and twenty-eighth: rounded to the nearest it would never fall again. It is rounded at
random instead, up or down by how near each neighbour is, so that it is right on average
(Gupta et al., arXiv:1502.02551; for bfloat16 training, Zamirai et al., arXiv:2010.06192).
"""

from __future__ import annotations

import torch
from torch.distributed.tensor import DTensor
from torch.optim.adamw import adamw

from mmr1.trainer.models.main_memory import local

MOMENTS = ("exp_avg", "exp_avg_sq")
_LOWER_BITS = 16  # of float32, those that bfloat16 has not


@torch.no_grad()
def step(optimizer: torch.optim.AdamW, number: int) -> None:
    """``optimizer.step()``, a parameter at a time: one pair of float32 moments exists at once.

    The state of each parameter must be there (``exp_avg``, ``exp_avg_sq`` bfloat16, ``step``).

    Args:
        number: That of the step, from which the random numbers come. Where several ranks hold a
            copy of a shard, all round it alike.
    """
    generators: dict[tuple[torch.device, int], torch.Generator] = {}
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
                own, shard = local(moment), _shard_index(moment)
                generator = generators.setdefault(
                    (own.device, shard),
                    torch.Generator(own.device).manual_seed(number << 20 | shard),
                )
                local(state[name]).copy_(stochastic_round(own, generator))


def _shard_index(tensor: torch.Tensor) -> int:
    """Which shard this rank has, equal for copies of the same one; 0 of a whole tensor."""
    if not isinstance(tensor, DTensor):
        return 0
    index = 0
    for dimension, placement in enumerate(tensor.placements):
        if placement.is_shard():
            rank = tensor.device_mesh.get_local_rank(dimension)
            index = index * tensor.device_mesh.size(dimension) + rank
    return index


def stochastic_round(
    values: torch.Tensor, generator: torch.Generator | None = None
) -> torch.Tensor:
    """float32 to bfloat16, to either neighbour with the probability that keeps the mean."""
    bits = values.view(torch.int32)
    noise = torch.randint(
        1 << _LOWER_BITS, bits.shape, generator=generator, dtype=torch.int32, device=bits.device
    )
    return ((bits + noise) >> _LOWER_BITS << _LOWER_BITS).view(torch.float32).to(torch.bfloat16)
