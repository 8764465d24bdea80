"""Tolerances, measured: a step is computed in the run's data type and in a more exact one.

Where the two differ by rounding, the run may differ as well. A gradient that is nearly 0, for
example of a KL term alone, is rounding noise in float32.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import replace

import torch

from mmr1_contrib.lab.audit.formulas import TokenInputs, token_loss
from mmr1_contrib.lab.audit.recompute import Recomputed
from mmr1_contrib.lab.audit.step_file import (
    LADDER,
    Rung,
    StepFile,
    Tolerance,
    difference,
    quantity_at,
    scale_of,
)

MARGIN = 10.0
"""Times the difference of two computations that another one may have."""
JUMP = 0.01
"""Share of a slope by which it changes at a bound, and not for its curvature."""
EXACT: Mapping[str, torch.dtype] = {"float32": torch.float64, "bfloat16": torch.float32}
"""The more exact data type for each data type of a run."""


def measured_tolerances(
    exact: Recomputed, rounded: Recomputed
) -> Mapping[tuple[str, int | None], Tolerance]:
    """Return the tolerance of each quantity, of updates by optimizer step.

    The rounding of a single number may be small by luck. So a loss may differ as its tokens' losses
    do together, and a gradient's norm as the norms of its parameters. Where the ratio of a token
    lies on a bound within rounding, the gradient and all that follows may differ as much as it has.

    Args:
        exact: The step, computed in the more exact data type.
        rounded: The step, computed in the data type of the run.
    """
    found = {
        (rung.name, step): _tolerance(rung, first, second)
        for rung in LADDER
        for step, first, second in _pairs(rung, exact.file, rounded.file)
        if first.is_floating_point() and first.shape == second.shape and first.numel()
    }
    unclear = 0.0
    for step, gap in enumerate(_loss_gaps(exact, rounded)):
        _widen(found, "update/loss", step, unclear, MARGIN * gap)
        unclear = max(unclear, MARGIN * _unclear_share(exact, rounded, step))
        gradients = found.get(("param/grad_norm", step), Tolerance()).relative
        _widen(found, "update/grad_norm", step, max(unclear, gradients))
        _widen(found, "param/grad_norm", step, unclear)
        _widen(found, "param/delta_norm", step, unclear)
    return found


def _widen(
    found: dict[tuple[str, int | None], Tolerance],
    name: str,
    step: int,
    relative: float,
    absolute: float = 0.0,
) -> None:
    own = found.get((name, step))
    if own is not None:
        wider = Tolerance(max(own.absolute, absolute), max(own.relative, relative))
        found[name, step] = wider


def _unclear_share(exact: Recomputed, rounded: Recomputed, step: int) -> float:
    """Return the share of the gradient that rounding decides: of ratios at a bound of the clip.

    The loss is continuous there, and its slope is not: on one side a token has no gradient.
    """
    logps = [own.file.tensors["token/old_logp"] for own in (exact, rounded)]
    slack = MARGIN * float(difference(*logps).mean())
    jumps, slopes = 0.0, 1e-30
    for x, weight in exact.losses[step]:
        below, above = (_slope(exact, x, weight, shift) for shift in (-slack, slack))
        jump = (above - below).abs()
        jumps += float(jump[jump > JUMP * (above.abs() + below.abs())].square().sum())
        slopes += float(torch.maximum(above.abs(), below.abs()).square().sum())
    return math.sqrt(jumps / slopes)


def _slope(own: Recomputed, x: TokenInputs, weight: torch.Tensor, shift: float) -> torch.Tensor:
    """Return the derivative of the loss by the log-prob of each token, all shifted by as much."""
    logp = (x.logp + shift).requires_grad_()
    loss = (weight * token_loss(own.recipe, replace(x, logp=logp))).sum()
    if not loss.requires_grad:
        return torch.zeros_like(logp)
    return torch.autograd.grad(loss, logp)[0]


def _loss_gaps(exact: Recomputed, rounded: Recomputed) -> Iterator[float]:
    """Yield the norm of the gaps of the tokens' weighted losses, for each optimizer step."""
    for first, second in zip(exact.losses, rounded.losses, strict=True):
        losses = [
            torch.cat([weight * token_loss(own.recipe, x) for x, weight in rows])
            for own, rows in ((exact, first), (rounded, second))
        ]
        yield float((losses[0].double() - losses[1].double()).norm())


def _pairs(
    rung: Rung, exact: StepFile, rounded: StepFile
) -> Iterator[tuple[int | None, torch.Tensor, torch.Tensor]]:
    count = len(exact.tensors.get(rung.name, ()))
    for step in range(count) if rung.of_update else (None,):
        first = quantity_at(exact.tensors.get(rung.name), step)
        second = quantity_at(rounded.tensors.get(rung.name), step)
        if first is not None and second is not None:
            yield step, first, second


def _tolerance(rung: Rung, first: torch.Tensor, second: torch.Tensor) -> Tolerance:
    gap = difference(first, second).flatten()
    if rung.name.startswith("param/"):
        scale = scale_of(rung.name, first).clamp(min=1e-12)
        return Tolerance(0.0, MARGIN * float((gap / scale).max()))
    return Tolerance(MARGIN * float(gap.max()), 0.0)
