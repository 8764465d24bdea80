"""Tolerances, measured: a step is computed in the run's data type and in a more exact one.

Where the two differ by rounding, the run may differ as well. A gradient that is nearly 0, for
example of a KL term alone, is rounding noise in float32.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

import torch

from mmr1_contrib.lab.audit.formulas import token_loss
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
NOISE = 0.1
"""Share of a gradient that may be rounding; above it, it is nothing else."""
EXACT: Mapping[str, torch.dtype] = {"float32": torch.float64, "bfloat16": torch.float32}
"""The more exact data type for each data type of a run."""


def measured_tolerances(
    exact: Recomputed, rounded: Recomputed
) -> Mapping[tuple[str, int | None], Tolerance]:
    """Return the tolerance of each quantity, of updates by optimizer step.

    The rounding of a single number may be small by luck. So a loss may differ as its tokens' losses
    do together, and a gradient's norm as the norms of its parameters.

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
    for step, gap in enumerate(_loss_gaps(exact, rounded)):
        loss = found["update/loss", step]
        found["update/loss", step] = Tolerance(max(loss.absolute, MARGIN * gap), loss.relative)
        if ("update/grad_norm", step) in found:
            relative = found["param/grad_norm", step].relative
            absolute = found["update/grad_norm", step].absolute
            found["update/grad_norm", step] = Tolerance(absolute, relative)
            change = found["param/delta_norm", step]
            noise = _noise(exact, rounded, step)
            found["param/delta_norm", step] = replace(change, noise=noise)
    return found


def _noise(exact: Recomputed, rounded: Recomputed, step: int) -> torch.Tensor:
    """True for each parameter that had, up to a step, a gradient which rounding decides.

    AdamW makes a change of full size of it. A bias of the keys is one: its gradient is 0.
    """
    first, second = (own.file.tensors["param/grad_norm"][: step + 1] for own in (exact, rounded))
    return (difference(first, second) > NOISE * first.abs()).any(0)


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
