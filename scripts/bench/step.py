"""A training step (forward and backward) against the same work without prefix sharing.

    python scripts/bench/step.py                          # 21M parameters, one CPU thread
    python scripts/bench/step.py --device cuda --shape 7b --response 512 --pixels 896 --prompts 4
    python scripts/bench/step.py --model models/llava --sizes 8 16   # any model directory

For each group size: FLOPs by torch's counter and the bound counted from the shapes, and the time
ratio with the ratio of the bound. With --model: the ratios of tokens, FLOPs, time and peak
memory above the loaded model, each of which is measured in a separate process.
"""

from __future__ import annotations

import argparse
import copy
import io
import json
from functools import partial
from pathlib import Path
from typing import Any

import common
import numpy as np
import torch
from PIL import Image

from mmr1.config import ModelConfig
from mmr1.trainer.forward.any_model.forward import verdict_of
from mmr1.trainer.forward.scores import completion_scores
from mmr1.trainer.forward.sequences import GroupInput, group_input
from mmr1.trainer.models.loading import load_trainable
from mmr1.types import Completion, MediaRef, Message, RolloutGroup, Sample, TextPart
from mmr1.vision.families.loading import load_family
from mmr1.vision.prepare import MediaCache
from tests.padded_forward import padded_scores


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
    parser.add_argument("--model", type=Path, help="a model directory; --shape is not read")
    parser.add_argument("--case", choices=["packed", "unshared"], help="print the peak of one run")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    if args.case:
        print(json.dumps({"MiB": peak(args)}))
        return
    if args.model:
        rows = [measure_model(args, n) for n in args.sizes]
        common.table(rows)
        common.save(args.output, f"step-{args.model.name}", {"rows": rows})
        return
    model, family = common.new_model(args.shape, args.device)
    if args.checkpointing:
        model.train()
        model.gradient_checkpointing_enable({"use_reentrant": False})
    rows = [measure(args, model, family, n) for n in args.sizes]
    common.table(rows)
    bf16 = "-bf16" if args.bf16 else ""
    common.save(args.output, f"step-{args.shape}{bf16}", {"rows": rows})


def measure(args: argparse.Namespace, model: Any, family: Any, n: int) -> dict[str, Any]:
    groups = common.new_groups(family, args.prompts, n, args.response, args.pixels)

    def run(scores: Any) -> None:
        model.zero_grad()
        with torch.autocast("cpu", torch.bfloat16, enabled=args.bf16):
            out = scores(model, groups)
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


def runs_of_model(args: argparse.Namespace, n: int) -> tuple[dict[str, Any], float]:
    """The forward and backward of a model directory, packed and not, and their ratio of tokens."""
    family = load_family(str(args.model))
    config = ModelConfig(path=str(args.model), dtype="float32")
    model = load_trainable(config).to(args.device)
    if args.checkpointing:
        model.train()
        model.gradient_checkpointing_enable({"use_reentrant": False})
    rng = np.random.default_rng(0)
    groups = [group_of_model(family, args, n, rng) for _ in range(args.prompts)]
    unshared = padded_scores
    if not family.shares_prompts:
        assert verdict_of(model) is not None, "its completions do not share their prompt"
        alone = copy.deepcopy(model)
        alone.sharing_verdict = None
        unshared = partial(use, completion_scores, alone)

    def run(scores: Any) -> None:
        model.zero_grad()
        out = scores(model, groups)
        (out.logprobs.sum() + 0.01 * out.entropy.sum()).backward()

    prompt = len(groups[0].prompt_ids)
    tokens = (prompt + n * (args.response - 1)) / (n * (prompt + args.response))
    runs = {"packed": partial(run, completion_scores), "unshared": partial(run, unshared)}
    return runs, tokens


def use(scores: Any, other: Any, model: Any, *args: Any) -> Any:
    """Compute ``scores`` by another model than the given one."""
    return scores(other, *args)


def group_of_model(family: Any, args: argparse.Namespace, n: int, rng: Any) -> GroupInput:
    pixels = rng.integers(0, 255, (args.pixels, args.pixels, 3), dtype=np.uint8)
    encoded = io.BytesIO()
    Image.fromarray(pixels).save(encoded, "PNG")
    shown = MediaRef("image", data=encoded.getvalue())
    sample = Sample("bench", (Message("user", (shown, TextPart("What is in this picture?"))),))
    rows = (rng.integers(60, 500, args.response) for _ in range(n))
    completions = (Completion(row, np.zeros(len(row), np.float32), "", False, 0) for row in rows)
    group = RolloutGroup(family.render_prompt(sample), tuple(completions))
    return group_input(family, MediaCache(family.prepare_media), group)


def measure_model(args: argparse.Namespace, n: int) -> dict[str, Any]:
    runs, tokens = runs_of_model(args, n)
    counted = {name: common.flops(r) for name, r in runs.items()}
    times = common.interleaved(runs, args.repeats, args.device)
    named = ["model", "device", "threads", "prompts", "response", "pixels"]
    options = [x for name in named for x in (f"--{name}", getattr(args, name))]
    options += ["--checkpointing"] if args.checkpointing else []
    peaks = {
        case: common.in_new_process(__file__, ["--case", case, "--sizes", n, *options])["MiB"]
        for case in runs
    }
    row: dict[str, Any] = {"n": n, "token ratio": tokens}
    for name, of in (("FLOP", counted), ("time", times), ("memory", peaks)):
        row[f"{name} ratio"] = of["packed"] / of["unshared"]
    return row | {"s": times["packed"], "MiB": peaks["packed"], "MiB unshared": peaks["unshared"]}


def peak(args: argparse.Namespace) -> float:
    """MiB of one forward and backward above the loaded model."""
    runs, _ = runs_of_model(args, args.sizes[0])
    if args.device == "cuda":
        return cuda_peak(runs[args.case]) - torch.cuda.memory_allocated() / 2**20
    before = common.peak_rss_mib()
    runs[args.case]()
    return common.peak_rss_mib() - before


def cuda_peak(run: Any) -> float:
    torch.cuda.reset_peak_memory_stats()
    run()
    return torch.cuda.max_memory_allocated() / 2**20


if __name__ == "__main__":
    main()
