"""Checks of forward and backward passes, on random weights at published shapes."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile

from mmr1 import attention
from mmr1.attention import Blocks, attend, attend_backward
from mmr1.config import Config, OptimizerConfig
from mmr1.estimate.load import Load
from mmr1.estimate.memory import estimate
from mmr1.trainer.forward.scores import completion_scores
from mmr1.trainer.models.optimizer import Optimizer
from scripts.gpu.figures import Figures, Setting, SkippedError, within
from tests.padded_forward import padded_scores

sys.path.insert(0, str(Path(__file__).parents[1] / "bench"))
import common

SHAPES = Path(__file__).parent / "shapes"
HEADS = (32, 64, 80, 128)  # small models, towers, Qwen2.5-VL's tower, language models
GIB = 2**30


def kernels(setting: Setting) -> Figures:
    """Attention as training calls it, in bf16 and float32, against float64: relative errors."""
    figures: Figures = {}
    bounds: dict[str, float] = {}
    for dtype, bound in ((torch.bfloat16, 0.02), (torch.float32, 1e-5)):
        for head in HEADS:
            forward, backward = _attention_errors(head, dtype, setting.device)
            name = f"{str(dtype).removeprefix('torch.')}, head {head}"
            figures |= {f"{name}, forward": forward, f"{name}, backward": backward}
            bounds |= {f"{name}, forward": bound, f"{name}, backward": bound}
    return within(figures, bounds)


def _attention_errors(head: int, dtype: torch.dtype, device: str) -> tuple[float, float]:
    generator = torch.Generator().manual_seed(head)
    q_lengths, k_lengths = (130, 1, 0, 77), (64, 33, 5, 130)
    sides = [
        torch.randn(sum(lengths), heads, head, generator=generator)
        for lengths, heads in ((q_lengths, 8), (k_lengths, 2), (k_lengths, 2), (q_lengths, 8))
    ]
    rounded = [side.to(dtype) for side in sides]
    exact = _attention([side.double() for side in rounded], q_lengths, k_lengths)
    there = [side.to(device) for side in rounded]
    if device != "cpu" and dtype == torch.bfloat16:
        assert attention.has_varlen_kernel(there[0]), "this GPU has no flash attention for bf16"
    ours = _attention(there, q_lengths, k_lengths)
    errors = [_relative(a, b) for a, b in zip(ours, exact, strict=True)]
    return errors[0], max(errors[1:])


def _attention(
    sides: list[torch.Tensor], q_lengths: tuple[int, ...], k_lengths: tuple[int, ...]
) -> list[torch.Tensor]:
    """Output, and gradients of query, key and value."""
    query, key, value, grad = sides
    blocks = Blocks(q_lengths, k_lengths, causal=False, device=query.device)
    scale = query.shape[-1] ** -0.5
    out, lse = attend(query, key, value, blocks, scale)
    return [out, *attend_backward(grad, query, key, value, out, lse, blocks, scale)]


def _relative(actual: torch.Tensor, exact: torch.Tensor) -> float:
    return float((actual.double().cpu() - exact).norm() / exact.norm())


def packed_against_padded(setting: Setting) -> Figures:
    """Log-probs and gradients in bf16, each relative to the padded forward's own rounding."""
    device = setting.device
    figures: Figures = {}
    bounds: dict[str, float] = {}
    for shape in ("tiny",) if device == "cpu" else ("tiny", "3b", "7b"):
        model, family = random_model(shape, device)
        groups = common.new_groups(family, 2, 4, 48, 280 if device != "cpu" else 56)
        packed, padded = (_scores(model, groups, f) for f in (completion_scores, padded_scores))
        mean, cosine = f"{shape}, mean gap in nats", f"{shape}, 1 - cosine of gradients"
        figures[mean] = float((packed[0] - padded[0]).abs().mean())
        figures[cosine] = 1 - float(torch.cosine_similarity(packed[1], padded[1], dim=0))
        bounds |= {mean: 0.05, cosine: 0.02}
        del model
    return within(figures, bounds)


def _scores(
    model: Any, groups: Any, forward: Callable[..., Any]
) -> tuple[torch.Tensor, torch.Tensor]:
    """Log-probs, and the gradient of their sum by the first layer's queries."""
    model.zero_grad()
    scores = forward(model, groups)
    scores.logprobs.sum().backward()
    weight = model.model.language_model.layers[0].self_attn.q_proj.weight
    return scores.logprobs.detach().float().cpu(), weight.grad.float().flatten().cpu()


def random_model(shape: str, device: str) -> tuple[Any, Any]:
    """Return a model of this shape with random weights in bf16, and its family."""
    model, family = common.new_model(shape, device)
    return model.to(torch.bfloat16), family


def checkpointed_step(setting: Setting) -> Figures:
    """A checkpointed update of 3B, 8 completions of 1,024 tokens at 896 pixels: time, and where."""
    n, response, pixels = (8, 1024, 896) if setting.on_gpu else (2, 8, 56)
    model, family = random_model("3b" if setting.on_gpu else "tiny", setting.device)
    model.train()
    model.gradient_checkpointing_enable({"use_reentrant": False})
    groups = common.new_groups(family, 1, n, response, pixels)
    seconds, peak = _step(model, groups, completion_scores, setting.device)
    with profile(activities=[_ACTIVITY[setting.device]]) as recorded:
        model.zero_grad()
        completion_scores(model, groups).logprobs.sum().backward()
        if setting.on_gpu:
            torch.cuda.synchronize()
    figures: Figures = {"s": seconds, "tokens/s": n * response / seconds}
    if setting.on_gpu:
        image = pixels // 28 * 2
        flops = common.step_flops(model.config, len(groups[0].prompt_ids), image, n, response, True)
        # Checkpointed: the forward runs twice.
        figures |= {"GiB": peak / GIB, "utilisation": 4 / 3 * flops / seconds / 989e12}
    events = recorded.key_averages()
    setting.folder.mkdir(parents=True, exist_ok=True)
    order = f"self_{'cuda' if setting.on_gpu else 'cpu'}_time_total"
    (setting.folder / "profile.txt").write_text(events.table(sort_by=order, row_limit=60))
    figures["profile"] = str(setting.folder / "profile.txt")
    figures["kernels"] = sum(event.count for event in events)
    return figures


_ACTIVITY = {"cuda": ProfilerActivity.CUDA, "cpu": ProfilerActivity.CPU}


def steps(setting: Setting) -> Figures:
    """Forward and backward, shared against unshared; utilisation of what a product reaches."""
    device, on_gpu = setting.device, setting.on_gpu
    shape, prompts, response = ("3b", 2, 512) if on_gpu else ("tiny", 1, 8)
    sizes, pixels = ((4, 8, 16), (280, 896)) if on_gpu else ((2,), (56,))
    model, family = random_model(shape, device)
    reached = product_flops(device)
    figures: Figures = {"product, TFLOP/s": reached / 1e12}
    for side in pixels:
        for n in sizes:
            groups = common.new_groups(family, prompts, n, response, side)
            case = f"n={n}, {side} pixels"
            for name, forward in (("shared", completion_scores), ("unshared", padded_scores)):
                try:
                    seconds, peak = _step(model, groups, forward, device)
                except torch.OutOfMemoryError:
                    figures[f"{case}, {name}"] = "out of memory"
                    continue
                figures[f"{case}, {name}, s"] = seconds
                if on_gpu:
                    figures[f"{case}, {name}, GiB"] = peak / GIB
                if name == "shared":
                    flops = prompts * common.step_flops(
                        model.config, len(groups[0].prompt_ids), side // 28 * 2, n, response, True
                    )
                    figures[f"{case}, utilisation"] = flops / seconds / reached
    return figures


def product_flops(device: str) -> float:
    """FLOP/s of a large matrix product in bf16."""
    size = 8192 if device != "cpu" else 256
    left = torch.randn(size, size, dtype=torch.bfloat16, device=device)
    runs = {"product": lambda: left @ left}
    return 2 * size**3 / common.interleaved(runs, 3, device)["product"]


def _step(model: Any, groups: Any, forward: Any, device: str) -> tuple[float, int]:
    def run() -> None:
        model.zero_grad()
        forward(model, groups).logprobs.sum().backward()

    if device != "cpu":
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
    seconds = common.interleaved({"step": run}, 2, device)["step"]
    return seconds, torch.cuda.max_memory_allocated() if device != "cpu" else 0


def estimated_memory(setting: Setting) -> Figures:
    """The peak of an update of 3B with checkpointed activations, against the estimate."""
    device = setting.device
    if device == "cpu":
        raise SkippedError("a CPU has no allocator that counts")
    n, response, pixels = 8, 512, 896
    config = Config.model_validate(
        {
            "model": {"path": str(SHAPES / "qwen2_5_vl_3b"), "gradient_checkpointing": True},
            "data": {"train_batch_size": 1},
            "rollout": {"n": n, "max_response_length": response},
        }
    )
    free = torch.cuda.mem_get_info()[0]
    model, family = random_model("3b", device)
    model.train()
    model.gradient_checkpointing_enable({"use_reentrant": False})
    groups = common.new_groups(family, 1, n, response, pixels)
    vision = sum(medium.tokens for medium in groups[0].media)
    expected = estimate(config, Load(len(groups[0].prompt_ids), vision, response))
    if expected.total("trainer") > free:
        raise SkippedError(f"it takes {expected.total('trainer') / GIB:.0f} GiB")
    optimizer = Optimizer(model, OptimizerConfig(), 10)
    start = time.perf_counter()
    for _ in range(2):
        for _ in range(2):
            completion_scores(model, groups).logprobs.sum().backward()
        optimizer.step()
    torch.cuda.synchronize()
    peak = torch.cuda.max_memory_allocated()
    figures: Figures = {
        "peak, GiB": peak / GIB,
        "estimate, GiB": expected.total("trainer") / GIB,
        "off by": abs(expected.total("trainer") / peak - 1),
        "two steps of two micro-batches, s": time.perf_counter() - start,
    }
    return within(figures, {"off by": 0.1})
