"""Bias and deviation of the KL estimators: two normals whose means are 0.1 and 1 apart.

    python scripts/bench/kl_estimators.py --output runs/bench/kl

The experiment of J. Schulman's "Approximating KL Divergence" (2020): samples of q = N(0, 1), the
estimators of KL(q, p) with p = N(0.1, 1) and p = N(1, 1), whose exact values are 0.005 and 0.5.
Prints the table and plots each estimate against the number of samples.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import matplotlib
import torch
from rich.console import Console
from rich.table import Table
from torch.distributions import Normal, kl_divergence

from mmr1.trainer.algorithms.kl import ESTIMATORS

matplotlib.use("Agg")
import matplotlib.pyplot as plt

NAMES = ("k1", "k2", "k3")
Estimates = dict[str, torch.Tensor]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--samples", type=int, default=10_000_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--output", type=Path, default=Path("runs/bench/kl"))
    args = parser.parse_args()
    args.output.mkdir(parents=True, exist_ok=True)

    table = Table("mean of p", "exact KL", "estimator", "bias / KL", "deviation / KL")
    figure, panels = plt.subplots(1, 2, figsize=(10, 4), layout="constrained")
    for panel, mean in zip(panels, (0.1, 1.0), strict=True):
        exact, estimates = estimate(mean, args.samples, args.seed)
        for name, values in estimates.items():
            bias = (values.mean().item() - exact) / exact
            deviation = values.std().item() / exact
            table.add_row(f"{mean:g}", f"{exact:g}", name, f"{bias:+.4f}", f"{deviation:.2f}")
        draw(panel, mean, exact, estimates)
    plot = args.output / "kl_estimators.png"
    figure.savefig(plot, dpi=150)
    Console().print(table)
    print(f"{args.samples:,} samples, seed {args.seed}; plot: {plot}")


def estimate(mean: float, samples: int, seed: int) -> tuple[float, Estimates]:
    """The exact KL, and each estimator's value for each sample, ``[samples]``."""
    torch.manual_seed(seed)
    q = Normal(torch.tensor(0.0, dtype=torch.float64), 1.0)
    p = Normal(torch.tensor(mean, dtype=torch.float64), 1.0)
    x = q.sample((samples,))
    estimates = {name: ESTIMATORS[name](q.log_prob(x), p.log_prob(x)) for name in NAMES}
    return kl_divergence(q, p).item(), estimates


def draw(panel: plt.Axes, mean: float, exact: float, estimates: Estimates) -> None:
    """Plot the running mean of each estimator, with one standard error on both sides."""
    first = min(1000, len(next(iter(estimates.values()))))
    count = torch.arange(1, first + 1)
    for name, values in estimates.items():
        running = values[:first].cumsum(0) / count
        error = values.std() / count.sqrt()
        (line,) = panel.plot(count, running, label=name)
        panel.fill_between(count, exact - error, exact + error, alpha=0.12, color=line.get_color())
    panel.axhline(exact, color="black", linewidth=0.8, label="exact")
    spread = 4 * max(float(v.std()) for v in estimates.values()) / 100**0.5
    panel.set(
        title=f"means {mean:g} apart",
        xlabel="samples",
        ylabel="running mean",
        xscale="log",
        ylim=(exact - spread, exact + spread),
    )
    panel.legend()


if __name__ == "__main__":
    main()
