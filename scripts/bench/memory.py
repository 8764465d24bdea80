"""Peak memory of a step: packed and unshared, with micro-batches and gradient checkpointing.

    python scripts/bench/memory.py

Each case is a separate process. The figure is its peak above the loaded model.
"""

from __future__ import annotations

import argparse
import json

import common
import torch

from mmr1.trainer.forward.micro_batches import micro_batches
from mmr1.trainer.forward.scores import completion_scores
from tests.padded_forward import padded_scores

CASES = {
    "unshared": (padded_scores, False, False),
    "unshared, checkpointing": (padded_scores, False, True),
    "packed": (completion_scores, False, False),
    "packed, checkpointing": (completion_scores, False, True),
    "packed, micro-batches": (completion_scores, True, False),
    "packed, both": (completion_scores, True, True),
}


def main() -> None:
    parser = common.parser(__doc__)
    parser.add_argument("--case", choices=CASES, help="measure one case, print one JSON line")
    parser.add_argument("--prompts", type=int, default=8)
    parser.add_argument("--n", type=int, default=8)
    parser.add_argument("--response", type=int, default=64)
    parser.add_argument("--pixels", type=int, default=280)
    parser.add_argument("--budget", type=int, default=1000)
    args = parser.parse_args()
    if args.case:
        print(json.dumps(measure(args)))
        return
    passed = ["shape", "device", "threads", "prompts", "n", "response", "pixels", "budget"]
    options = [x for name in passed for x in (f"--{name}", getattr(args, name))]
    rows = [common.in_new_process(__file__, ["--case", c, *options]) for c in CASES]
    for row in rows:
        row["of unshared"] = row["MiB"] / rows[0]["MiB"]
    common.table(rows)
    common.save(args.output, f"memory-{args.shape}", {"rows": rows})


def measure(args: argparse.Namespace) -> dict[str, object]:
    scores, cut, checkpointing = CASES[args.case]
    torch.set_num_threads(args.threads)
    model, family = common.new_model(args.shape, args.device)
    if checkpointing:
        model.train()
        model.gradient_checkpointing_enable({"use_reentrant": False})
    groups = common.new_groups(family, args.prompts, args.n, args.response, args.pixels)
    cuts = micro_batches(groups, args.budget) if cut else micro_batches(groups, 1e9)
    model.zero_grad()
    before = (
        common.peak_rss_mib() if args.device == "cpu" else torch.cuda.memory_allocated() / 2**20
    )
    for batch in cuts:
        scores(model, batch.groups).logprobs.sum().backward()
    after = common.peak_rss_mib()
    if args.device == "cuda":
        after = torch.cuda.max_memory_allocated() / 2**20
    return {"case": args.case, "micro-batches": len(cuts), "MiB": after - before}


if __name__ == "__main__":
    main()
