"""The results of a comparison: tables, a plot and ``compare.json``."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")  # no screen needed
from matplotlib import pyplot as plt
from matplotlib.axes import Axes

from mmr1.files import atomic
from mmr1.report.colours import COLOURS, DPI
from mmr1_contrib.lab.compare.plan import Hypothesis, Plan, differing
from mmr1_contrib.lab.compare.statistics import (
    Estimate,
    Verdict,
    estimate,
    paired,
    verdict,
    with_seeds_needed,
)
from mmr1_contrib.lab.compare.trials import Trial


@dataclass(frozen=True, slots=True)
class Difference:
    """The difference of two arms in one metric, paired by seed.

    Attributes:
        text: Expectation, or the names of the arms.
        smallest: Smallest difference that would matter, if there is one.
        verdict: None without ``smallest``.
    """

    text: str
    metric: str
    more: str
    less: str
    difference: Estimate
    smallest: float | None = None
    verdict: Verdict | None = None


def of_arm(trials: Sequence[Trial], arm: str, metric: str) -> list[float]:
    """The values of an arm, in the order of the seeds."""
    own = sorted((t for t in trials if t.arm == arm), key=lambda trial: trial.seed)
    return [trial.values[metric] for trial in own]


def differences(plan: Plan, trials: Sequence[Trial]) -> list[Difference]:
    """The differences of the hypotheses; without one, of each arm and the first, by metric."""
    expected = plan.hypotheses or [
        Hypothesis(
            text=f"{arm.name} - {plan.arms[0].name}",
            metric=metric,
            more=arm.name,
            less=plan.arms[0].name,
            smallest=plan.margin or 0.0,
        )
        for metric in plan.metrics
        for arm in plan.arms[1:]
    ]
    judged = bool(plan.hypotheses) or plan.margin is not None
    found = []
    for h in expected:
        difference = paired(of_arm(trials, h.more, h.metric), of_arm(trials, h.less, h.metric))
        conclusion = (h.smallest, verdict(difference, h.smallest)) if judged else (None, None)
        found.append(Difference(h.text, h.metric, h.more, h.less, difference, *conclusion))
    return found


def arms_table(
    arms: Sequence[str], headings: Mapping[str, str], values: Mapping[tuple[str, str], Estimate]
) -> Iterator[str]:
    """Lines of a Markdown table: a row per arm with mean and interval of each metric.

    Args:
        headings: Headings of the columns, by metric.
        values: Values by arm and metric.
    """
    yield "| arm | " + " | ".join(headings.values()) + " |"
    yield "|---" * (1 + len(headings)) + "|"
    for arm in arms:
        cells = [formatted(values[arm, metric]) for metric in headings]
        yield f"| {arm} | " + " | ".join(cells) + " |"


def page(plan: Plan, trials: Sequence[Trial]) -> str:
    """``compare.md``: the arms, their differences, and the keys in which they differ."""
    names = [arm.name for arm in plan.arms]
    headings = plan.headings or {metric: metric for metric in plan.metrics}
    values = {(a, m): estimate(of_arm(trials, a, m)) for a in names for m in headings}
    lines = [*arms_table(names, headings, values), ""]
    lines += ["| difference | of | mean (95%) | smallest that matters | seeds | |"]
    lines += ["|---|---|---|---|---|---|"]
    for d in differences(plan, trials):
        smallest = "" if d.smallest is None else f"{d.smallest:g}"
        cells = [d.text, d.metric, formatted(d.difference, sign="+"), smallest]
        found = ""
        if d.verdict is not None and d.smallest is not None:
            found = with_seeds_needed(d.verdict, d.difference, d.smallest)
        lines.append(f"| {' | '.join(cells)} | {d.difference.seeds} | {found} |")
    lines += ["", f"| key | {' | '.join(names)} |", "|---" * (1 + len(names)) + "|"]
    for key, of_arms in differing(plan.arms).items():
        lines.append(f"| `{key}` | {' | '.join(json.dumps(of_arms[name]) for name in names)} |")
    return "\n".join(lines) + "\n"


def formatted(value: Estimate, sign: str = "") -> str:
    """Mean and interval, with three decimals below 10 and one above.

    >>> formatted(Estimate(0.5, 0.4, 0.6, 5))
    '0.500 (0.400 to 0.600)'
    """
    digits = 3 if abs(value.mean) < 10 else 1
    mean = f"{value.mean:{sign}.{digits}f}"
    if value.low is None or value.high is None:
        return mean
    return f"{mean} ({value.low:.{digits}f} to {value.high:.{digits}f})"


def write_results(folder: Path, plan: Plan, trials: Sequence[Trial]) -> str:
    """Write ``compare.json``, ``compare.md`` and ``compare.png``; returns the tables."""
    tables = page(plan, trials)
    found: dict[str, Any] = {
        "metrics": dict(plan.metrics),
        "trials": [asdict(trial) for trial in trials],
        "differences": [asdict(difference) for difference in differences(plan, trials)],
        "keys": differing(plan.arms),
    }
    folder.mkdir(parents=True, exist_ok=True)
    with atomic(folder / "compare.json") as file:
        file.write(json.dumps(found, indent=1) + "\n")
    with atomic(folder / "compare.md") as file:
        file.write(tables)
    write_plot(folder / "compare.png", plan, trials)
    return tables


def write_plot(path: Path, plan: Plan, trials: Sequence[Trial]) -> None:
    """A panel for each metric: its curve where steps have it, else a point for each seed."""
    names = [arm.name for arm in plan.arms]
    drawn = list(plan.drawn)
    figure, panels = plt.subplots(
        1, len(drawn), figsize=(6 * len(drawn), 3.2), layout="constrained", squeeze=False
    )
    for axes, metric in zip(panels[0], drawn, strict=True):
        of_arms = {n: [t.curves[metric] for t in trials if t.arm == n] for n in names}
        curves = {name: found for name, found in of_arms.items() if all(found)}
        if curves:  # SFT has no rollouts, and so no curve of their rewards
            over = plan.plot.over if plan.plot is not None else "tenths of the run"
            draw_curves(axes, curves)
            axes.set(xlabel=over, ylabel=metric)
        elif metric in plan.metrics:
            _draw_points(axes, {name: of_arm(trials, name, metric) for name in names})
            axes.set(ylabel=metric)
        else:
            axes.set(title=f"{metric}: no arm has it in every run")
    save(figure, path)


def draw_curves(axes: Axes, of_arms: Mapping[str, Sequence[Sequence[float]]]) -> None:
    """The mean curve of each arm, with its interval over the seeds."""
    axes.set_prop_cycle(color=COLOURS)
    for arm, curves in of_arms.items():
        points = [estimate(values) for values in zip(*curves, strict=True)]
        if not points:  # such as of SFT, which has no rollouts
            continue
        at = range(1, len(points) + 1)
        (line,) = axes.plot(at, [point.mean for point in points], label=arm, marker=".")
        bounds = [(p.low, p.high) for p in points if p.low is not None and p.high is not None]
        if len(bounds) == len(points):
            low, high = zip(*bounds, strict=True)
            axes.fill_between(at, low, high, alpha=0.15, color=line.get_color(), linewidth=0)
    axes.legend(frameon=False, fontsize=8)


def _draw_points(axes: Axes, of_arms: Mapping[str, Sequence[float]]) -> None:
    """The seeds of each arm, one line for each seed through all arms."""
    at = range(len(of_arms))
    for of_seed in zip(*of_arms.values(), strict=True):
        axes.plot(at, of_seed, marker=".", linewidth=0.8, alpha=0.6, color="grey")
    axes.plot(at, [estimate(v).mean for v in of_arms.values()], "_", markersize=24, color="black")
    axes.set_xticks(at, list(of_arms))


def save(figure: Any, path: Path) -> None:
    """Write a figure as PNG and forget it."""
    for axes in figure.axes:
        axes.spines[["top", "right"]].set_visible(False)
        axes.grid(alpha=0.25)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=DPI)
    plt.close(figure)
