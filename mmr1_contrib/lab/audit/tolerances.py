"""Tolerances of a run in half precision, measured: two computations differ by rounding alone."""

from __future__ import annotations

from collections.abc import Mapping

from mmr1_contrib.lab.audit.step_file import LADDER, StepFile, Tolerance, difference, scale_of

MARGIN = 10.0
"""Times the difference of two computations that another one may have."""


def measured_tolerances(exact: StepFile, rounded: StepFile) -> Mapping[str, Tolerance]:
    """Return the tolerance of each quantity.

    Args:
        exact: The step, computed in float32.
        rounded: The step, computed in the data type of the run.
    """
    found: dict[str, Tolerance] = {}
    for rung in LADDER:
        first, second = exact.tensors.get(rung.name), rounded.tensors.get(rung.name)
        if first is None or second is None or first.shape != second.shape:
            continue
        if not first.is_floating_point() or first.numel() == 0:
            continue
        gap = difference(first, second).flatten()
        if rung.name.startswith("param/"):
            scale = scale_of(rung.name, first).clamp(min=1e-12)
            found[rung.name] = Tolerance(0.0, MARGIN * float((gap / scale).max()))
        else:
            found[rung.name] = Tolerance(MARGIN * float(gap.max()), 0.0)
    return found
