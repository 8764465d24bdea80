"""Bias and deviation of the KL estimators: two normals whose means are 0.1 and 1 apart.

    python scripts/bench/kl_estimators.py

The experiment of J. Schulman's "Approximating KL Divergence" (2020): samples of q = N(0, 1), the
estimators of KL(q, p) with p = N(0.1, 1) and p = N(1, 1), whose exact values are 0.005 and 0.5.
"""

from __future__ import annotations

import argparse

import torch
from rich.console import Console
from rich.table import Table
from torch.distributions import Normal, kl_divergence

from mmr1.algorithms.kl import ESTIMATORS

NAMES = ("k1", "k2", "k3")
Estimates = dict[str, torch.Tensor]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--samples", type=int, default=10_000_000)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    table = Table("mean of p", "exact KL", "estimator", "bias / KL", "deviation / KL")
    for mean in (0.1, 1.0):
        exact, estimates = estimate(mean, args.samples, args.seed)
        for name, values in estimates.items():
            bias = (values.mean().item() - exact) / exact
            deviation = values.std().item() / exact
            table.add_row(f"{mean:g}", f"{exact:g}", name, f"{bias:+.4f}", f"{deviation:.2f}")
    Console().print(table)
    print(f"{args.samples:,} samples, seed {args.seed}")


def estimate(mean: float, samples: int, seed: int) -> tuple[float, Estimates]:
    """The exact KL, and each estimator's value for each sample, ``[samples]``."""
    torch.manual_seed(seed)
    q = Normal(torch.tensor(0.0, dtype=torch.float64), 1.0)
    p = Normal(torch.tensor(mean, dtype=torch.float64), 1.0)
    x = q.sample((samples,))
    estimates = {name: ESTIMATORS[name](q.log_prob(x), p.log_prob(x)) for name in NAMES}
    return kl_divergence(q, p).item(), estimates


if __name__ == "__main__":
    main()
