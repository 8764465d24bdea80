"""The numbers of a finished run by name: of its evaluation, and of its steps."""

from __future__ import annotations

import json
import math
import re
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

    >>> parse_metric("rewards/math/mean:mean")
    ('rewards/math/mean', 'mean')

    Raises:
        ValueError: If no way has the name.
    """
    name, separator, way = metric.rpartition(":")
    if not separator:
        return metric, "end"
    if way not in _WAYS:
        raise ValueError(f"metric '{metric}': after the colon comes one of {', '.join(_WAYS)}")
    return name, way


BEFORE = "@before"
"""Ends a metric that is measured after the run before the last one of an arm."""
_NUMBER = re.compile(r"\d+(?:\.\d+)?")
_OPERATOR = re.compile(r"(?:^|(?<=\s))([-+*/()])(?=\s|$)")


def check_metric(metric: str) -> None:
    """Raises ValueError for an unknown calculation or way."""

    def operand(name: str) -> float:
        parse_metric(name.removesuffix(BEFORE))
        return 1.0

    _calculated(metric, operand)


def values_of(runs: Sequence[Path], metrics: Mapping[str, str]) -> dict[str, float]:
    """The values of each metric of an arm's finished runs, by name.

    A metric is a number of a run, or a calculation with such numbers and with the metrics named
    before it, in which ``+ - * / ( )`` stand between spaces.

    Raises:
        ValueError: A run has no such metric. The message names the most similar one.
    """
    found: dict[str, float] = {}

    def operand(name: str) -> float:
        if name in found:
            return found[name]
        run = runs[-2] if name.endswith(BEFORE) else runs[-1]
        return _single_value(run, name.removesuffix(BEFORE))

    for name, metric in metrics.items():
        found[name] = _calculated(metric, operand)
    return found


def _calculated(metric: str, operand: Callable[[str], float]) -> float:
    """A calculation whose operands are numbers and names."""
    parts = [part.strip() for part in _OPERATOR.split(metric) if part.strip()]
    values: dict[str, float] = {}
    terms = []
    for part in parts:
        if part not in set("+-*/()"):
            name = f"v{len(values)}"
            values[name] = float(part) if _NUMBER.fullmatch(part) else operand(part)
            part = name
        terms.append(part)
    try:  # of these names and operators alone
        return float(eval(" ".join(terms), {"__builtins__": {}}, values))
    except (SyntaxError, TypeError) as error:
        raise ValueError(f"metric '{metric}' is not a calculation: {error}") from error
    except ZeroDivisionError:
        return math.nan


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
    """Means over tenths of the run; empty if steps lack the metric, or it is calculated."""
    if _OPERATOR.search(metric) or metric.endswith(BEFORE):
        return ()
    columns = read_metrics(run / "metrics.jsonl")
    curve = tenths(columns.get(parse_metric(metric)[0], ()))
    return () if any(map(math.isnan, curve)) else curve


def evaluation_of(run: Path) -> dict[str, float]:
    """The numbers of ``eval/result.json``.

    ``eval/greedy`` is the accuracy, as in ``metrics.jsonl``, ``eval/greedy/format`` the mean of a
    reward's component, ``eval/greedy[plain]`` the accuracy of a task or of a value of
    ``eval.group_by``, ``eval/greedy/vision/swapped`` what a token loses with another picture, and
    ``eval/greedy_length_mean`` any other number; also for ``sampled``.
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
        lost = result.get("vision", {}).items()
        numbers |= {f"eval/{mode}/vision/{name}": value for name, value in lost}
        numbers |= {f"eval/{mode}_pass@{k}": v for k, v in result.get("pass_at", {}).items()}
        shares = result.get("by", {}).items()
        numbers |= {f"eval/{mode}[{kind}]": share["accuracy"] for kind, share in shares}
    return numbers


def _plain(tree: Mapping[str, Any]) -> dict[str, float]:
    return {name: value for name, value in tree.items() if isinstance(value, int | float)}
