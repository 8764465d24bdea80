"""Time and peak memory of a step by number of groups, at a fixed micro-batch budget.

    python scripts/bench/scaling.py

Time should be linear and memory constant. Each point is a separate process.
"""

from __future__ import annotations

import argparse
import json

import common
import numpy as np
import torch
from matplotlib import pyplot as plt

from mmr1.trainer.forward.micro_batches import micro_batches
from mmr1.trainer.forward.scores import completion_scores


def main() -> None:
    parser = common.parser(__doc__)
    parser.add_argument("--groups", type=int, nargs="+", default=[1, 2, 4, 8, 16, 32])
    parser.add_argument("--one", type=int, help="measure this many groups, print one JSON line")
    parser.add_argument("--n", type=int, default=8)
    parser.add_argument("--response", type=int, default=64)
    parser.add_argument("--pixels", type=int, default=140)
    parser.add_argument("--budget", type=int, default=1200)
    args = parser.parse_args()
    if args.one is not None:
        print(json.dumps(point(args)))
        return
    passed = ["shape", "threads", "repeats", "n", "response", "pixels", "budget"]
    options = [x for name in passed for x in (f"--{name}", getattr(args, name))]
    rows = [common.in_new_process(__file__, ["--one", g, *options]) for g in args.groups]
    common.table(rows)
    r_squared = float(
        np.corrcoef([r["groups"] for r in rows], [r["CPU s"] for r in rows])[0, 1] ** 2
    )
    full = [row["peak MiB"] for row in rows if row["micro-batches"] > 1]
    spread = (max(full) - min(full)) / np.mean(full) / 2
    print(f"time is linear with R² = {r_squared:.4f}; peak memory within ±{spread:.1%}")
    results = {"rows": rows, "r_squared": r_squared, "memory_spread": spread}
    common.save(args.output, "scaling", results, plot(rows))


def point(args: argparse.Namespace) -> dict[str, float]:
    torch.set_num_threads(args.threads)
    model, family = common.new_model(args.shape, "cpu")
    groups = common.new_groups(family, args.one, args.n, args.response, args.pixels)
    batches = micro_batches(groups, args.budget)

    def run() -> None:
        model.zero_grad(set_to_none=False)
        for batch in batches:
            completion_scores(model, batch.groups, 1.0).logprobs.sum().backward()

    best = common.interleaved({"step": run}, args.repeats)["step"]
    return {
        "groups": args.one,
        "micro-batches": len(batches),
        "CPU s": best,
        "peak MiB": common.peak_rss_mib(),
    }


def plot(rows: list[dict[str, float]]) -> plt.Figure:
    figure, (time, memory) = plt.subplots(1, 2, figsize=(8, 3))
    groups = [row["groups"] for row in rows]
    time.plot(groups, [row["CPU s"] for row in rows], marker="o")
    time.set(xlabel="groups", ylabel="CPU seconds of a step", ylim=(0, None))
    memory.plot(groups, [row["peak MiB"] for row in rows], marker="o")
    memory.set(xlabel="groups", ylabel="peak RSS, MiB", ylim=(0, None))
    return figure


if __name__ == "__main__":
    main()
