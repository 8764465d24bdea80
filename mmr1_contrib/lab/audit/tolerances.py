"""Tolerances, measured: a step is computed in the run's data type and in a more exact one.

Where the two differ by rounding, the run may differ as well. A gradient that is nearly 0, for
example of a KL term alone, is rounding noise in float32.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import torch

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
EXACT: Mapping[str, torch.dtype] = {"float32": torch.float64, "bfloat16": torch.float32}
"""The more exact data type for each data type of a run."""


def measured_tolerances(
    exact: StepFile, rounded: StepFile
) -> Mapping[tuple[str, int | None], Tolerance]:
    """Return the tolerance of each quantity, of updates by optimizer step.

    Args:
        exact: The step, computed in the more exact data type.
        rounded: The step, computed in the data type of the run.
    """
    return {
        (rung.name, step): _tolerance(rung, first, second)
        for rung in LADDER
        for step, first, second in _pairs(rung, exact, rounded)
        if first.is_floating_point() and first.shape == second.shape and first.numel()
    }


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
