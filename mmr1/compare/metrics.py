"""The numbers of a finished run by name: of its evaluation, and of its steps."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from statistics import fmean
from typing import Any

from mmr1.registry import suggest
from mmr1.report.curves import read_metrics

PARTS = 10
"""Parts of a run: a curve has a point for each."""


def tenths(values: Sequence[float], parts: int = PARTS) -> tuple[float, ...]:
    """Means over equal parts, as nearly as the length allows; NaN is left out.

    >>> tenths([1.0, 3.0, 5.0, 7.0], 2)
    (2.0, 6.0)
    """
    ends = [round(i * len(values) / parts) for i in range(parts + 1)]
    cut = (values[a:b] for a, b in pairwise(ends) if b > a)
    known = ([v for v in part if not math.isnan(v)] for part in cut)
    return tuple(fmean(part) if part else math.nan for part in known)


_WAYS: Mapping[str, Callable[[Sequence[float]], float]] = {
    "end": lambda values: tenths(values)[-1],
    "mean": fmean,
    "sum": math.fsum,
    "last": lambda values: values[-1],
}
"""How the values of all steps become one: ``end`` is the mean of the last tenth."""


def parse_metric(metric: str) -> tuple[str, str]:
    """``NAME`` or ``NAME:WAY`` as both; the way of a name without one is ``end``.

    >>> parse_metric("reward/math:mean")
    ('reward/math', 'mean')

    Raises:
        ValueError: There is no such way.
    """
    name, separator, way = metric.rpartition(":")
    if not separator:
        return metric, "end"
    if way not in _WAYS:
        raise ValueError(f"metric '{metric}': after the colon stands one of {', '.join(_WAYS)}")
    return name, way


def value_of(run: Path, metric: str) -> float:
    """A metric of a finished run, or ``A - B`` of two.

    Raises:
        ValueError: The run has no such metric. The message names the most similar one.
    """
    first, *others = (_single_value(run, part) for part in metric.split(" - "))
    return first - math.fsum(others)


def _single_value(run: Path, metric: str) -> float:
    name, way = parse_metric(metric)
    evaluated = evaluation_of(run)
    if name in evaluated:
        return evaluated[name]
    columns = read_metrics(run / "metrics.jsonl")
    known = [v for v in columns.get(name, ()) if v is not None and not math.isnan(v)]
    if not known:
        names = sorted({*evaluated, *columns})
        hint = suggest(name, names) or f"; there are {', '.join(names)}"
        raise ValueError(f"{run} has no metric '{name}'{hint}")
    return _WAYS[way](columns[name] if way == "end" else known)


def curve_of(run: Path, metric: str) -> tuple[float, ...]:
    """Its means over tenths of the run; empty if steps do not have it, or it is of two."""
    if " - " in metric:
        return ()
    columns = read_metrics(run / "metrics.jsonl")
    curve = tenths(columns.get(parse_metric(metric)[0], ()))
    return () if any(map(math.isnan, curve)) else curve


def evaluation_of(run: Path) -> dict[str, float]:
    """The numbers of ``eval/result.json``.

    ``eval/greedy`` is the accuracy, as in ``metrics.jsonl``, ``eval/greedy/format`` the mean of a
    reward's component, and ``eval/greedy_length_mean`` any other number; also for ``sampled``.
    """
    path = run / "eval/result.json"
    if not path.is_file():
        return {}
    numbers: dict[str, float] = {}
    for mode, result in json.loads(path.read_text()).items():
        if not isinstance(result, dict):
            continue
        numbers[f"eval/{mode}"] = result["accuracy"]
        numbers |= {f"eval/{mode}_{name}": value for name, value in _plain(result).items()}
        numbers |= {f"eval/{mode}/{name}": v for name, v in _plain(result["components"]).items()}
        numbers |= {f"eval/{mode}_pass@{k}": v for k, v in result.get("pass_at", {}).items()}
    return numbers


def _plain(tree: Mapping[str, Any]) -> dict[str, float]:
    return {name: value for name, value in tree.items() if isinstance(value, int | float)}
