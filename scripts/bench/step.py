"""A training step (forward and backward) against the same work without prefix sharing.

    python scripts/bench/step.py                          # 21M parameters, one CPU thread
    python scripts/bench/step.py --device cuda --shape 7b --response 512 --pixels 896 --prompts 4

For each group size: FLOPs by torch's counter and the bound counted from the shapes, and the time
ratio with the ratio of the bound.
"""

from __future__ import annotations

import argparse
from typing import Any

import common
import torch
from matplotlib import pyplot as plt

from mmr1.trainer.forward.padded import padded_scores
from mmr1.trainer.forward.scores import completion_scores


def main() -> None:
    parser = common.parser(__doc__)
    parser.add_argument("--prompts", type=int, default=2)
    parser.add_argument("--sizes", type=int, nargs="+", default=[2, 4, 8, 16])
    parser.add_argument("--response", type=int, default=64)
    parser.add_argument("--pixels", type=int, default=280)
    parser.add_argument("--bf16", action="store_true", help="bf16 autocast on the CPU")
    parser.add_argument("--checkpointing", action="store_true")
    parser.add_argument(
        "--peak-tflops", type=float, help="peak TFLOP/s of the device, for utilisation"
    )
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    model, family = common.new_model(args.shape, args.device)
    if args.checkpointing:
        model.train()
        model.gradient_checkpointing_enable({"use_reentrant": False})
    rows = [measure(args, model, family, n) for n in args.sizes]
    common.table(rows)
    bf16 = "-bf16" if args.bf16 else ""
    common.save(args.output, f"step-{args.shape}{bf16}", {"rows": rows}, plot(rows))


def measure(args: argparse.Namespace, model: Any, family: Any, n: int) -> dict[str, Any]:
    groups = common.new_groups(family, args.prompts, n, args.response, args.pixels)

    def run(scores: Any) -> None:
        model.zero_grad()
        with torch.autocast("cpu", torch.bfloat16, enabled=args.bf16):
            out = scores(model, groups, 1.0)
        (out.logprobs.sum() + 0.01 * out.entropy.sum()).backward()

    runs = {"packed": lambda: run(completion_scores), "unshared": lambda: run(padded_scores)}
    shape = (len(groups[0].prompt_ids), args.pixels // 28 * 2, n, args.response)
    bound, whole = (
        args.prompts * common.step_flops(model.config, *shape, shared=s) for s in (True, False)
    )
    counted = {name: common.flops(r) for name, r in runs.items()}
    times = common.interleaved(runs, args.repeats, args.device)
    row = {
        "n": n,
        "GFLOP": counted["packed"] / 1e9,
        "bound": bound / 1e9,
        "FLOPs/bound": counted["packed"] / bound,
        "s": times["packed"],
        "s unshared": times["unshared"],
        "FLOP ratio": counted["packed"] / counted["unshared"],
        "bound ratio": bound / whole,
        "time ratio": times["packed"] / times["unshared"],
    }
    row["time/bound"] = row["time ratio"] / row["bound ratio"]
    if args.device == "cuda":
        row |= {f"MiB {name}": cuda_peak(r) for name, r in runs.items()}
    if args.peak_tflops:
        row["utilisation"] = bound / times["packed"] / (args.peak_tflops * 1e12)
    return row


def cuda_peak(run: Any) -> float:
    torch.cuda.reset_peak_memory_stats()
    run()
    return torch.cuda.max_memory_allocated() / 2**20


def plot(rows: list[dict[str, Any]]) -> plt.Figure:
    figure, axes = plt.subplots(figsize=(5, 3.5))
    sizes = [row["n"] for row in rows]
    for name in ("bound ratio", "FLOP ratio", "time ratio"):
        axes.plot(sizes, [row[name] for row in rows], marker="o", label=name)
    axes.set(xlabel="completions per prompt", ylabel="packed / unshared", ylim=(0, 1))
    axes.set_xscale("log", base=2)
    axes.legend()
    return figure


if __name__ == "__main__":
    main()
