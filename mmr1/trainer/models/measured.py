"""Optimizer steps measured parameter by parameter, for the step file."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from mmr1.trainer.models.weights import whole
from mmr1.types import StepStats


@dataclass(frozen=True, slots=True)
class ParameterNorms:
    """L2 norms of one optimizer step, in the order of the trained parameters.

    Attributes:
        gradients: Norm of each gradient before clipping, ``[W]`` float32; 0 without a gradient.
        changes: Norm of each parameter's change, in float32 masters, ``[W]`` float32.
    """

    gradients: torch.Tensor
    changes: torch.Tensor


@dataclass(frozen=True, slots=True)
class MeasuredUpdate:
    """An update of the policy with what each of its optimizer steps did.

    Attributes:
        stats: Metrics of the update.
        steps_before: Optimizer steps taken before it.
        parameters: Names of the W trained parameters.
        steps: Metrics of each optimizer step: its ``loss``, ``grad_norm`` and ``lr`` among them.
        norms: Norms of each optimizer step.
    """

    stats: StepStats
    steps_before: int
    parameters: tuple[str, ...]
    steps: tuple[StepStats, ...]
    norms: tuple[ParameterNorms, ...]


def stacked_norms(tensors: Sequence[torch.Tensor | None]) -> torch.Tensor:
    """Return the L2 norm of each tensor, ``[W]`` float32 on the CPU; 0 for None.

    Shards are summed over the ranks, so every rank must call it with its part of the same tensors.
    """
    norms = [None if t is None else whole(torch.linalg.vector_norm(t.detach())) for t in tensors]
    device = next((norm.device for norm in norms if norm is not None), torch.device("cpu"))
    zero = torch.zeros((), device=device)
    return torch.stack([zero if norm is None else norm.float() for norm in norms]).cpu()
