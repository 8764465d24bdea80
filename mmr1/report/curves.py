"""Curves of a run's ``metrics.jsonl`` as a PNG."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path

from mmr1.extras import needs_extra
from mmr1.report.colours import COLOURS, DPI
from mmr1.report.findings import centred
from mmr1.trainer.runs.findings import reward_of

with needs_extra("report", "a plot of metrics"):
    import matplotlib

    matplotlib.use("Agg")  # no screen needed
    from matplotlib import pyplot as plt
    from matplotlib.axes import Axes


def read_metrics(path: Path) -> dict[str, list[float]]:
    """``metrics.jsonl`` as columns; NaN for steps without the metric.

    Raises:
        ValueError: The file is missing, or a line is not JSON. Names the line.
    """
    if not path.is_file():
        raise ValueError(f"{path}: no such file; is this the directory of a run?")
    rows = []
    for number, line in enumerate(path.read_text().splitlines(), 1):
        try:
            rows.append(json.loads(line))
        except json.JSONDecodeError as error:
            raise ValueError(f"{path}:{number}: not JSON ({error.msg})") from error
    names = list(dict.fromkeys(name for row in rows for name in row))
    return {name: [row.get(name, float("nan")) for row in rows] for name in names}


def plot_rewards(metrics: Mapping[str, list[float]], path: Path, title: str) -> None:
    """Plot reward, components and entropy over steps: pale as logged, strong as a centred mean."""
    plt.rcParams["axes.prop_cycle"] = plt.cycler(color=COLOURS)
    figure, (rewards, entropy) = plt.subplots(1, 2, figsize=(10, 3.6), width_ratios=(2, 1))
    _curve(rewards, metrics["step"], metrics["reward/mean"], "mean")
    for metric in metrics:
        if (name := reward_of(metric, "mean")) is not None:
            _curve(rewards, metrics["step"], metrics[metric], name)
    _curve(entropy, metrics["step"], metrics["entropy"], "entropy")
    rewards.set(xlabel="step", ylabel="reward", title=title)
    entropy.set(xlabel="step", ylabel="nats per token", title="entropy")
    rewards.legend(frameon=False)
    for axes in (rewards, entropy):
        axes.spines[["top", "right"]].set_visible(False)
        axes.grid(alpha=0.25)
    figure.tight_layout()
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=DPI)
    plt.close(figure)


def _curve(axes: Axes, steps: list[float], values: list[float], label: str) -> None:
    known = [None if math.isnan(value) else value for value in values]
    means = [math.nan if mean is None else mean for mean in centred(known, len(steps) // 40)]
    (line,) = axes.plot(steps, values, alpha=0.25, linewidth=1)
    axes.plot(steps, means, color=line.get_color(), label=label)
