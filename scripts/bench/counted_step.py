"""Counts the kernels, bytes and FLOPs of an update of a published shape, on a stand-in device.

    python -m scripts.bench.counted_step                   a group of 8 x 1,024 tokens on 3B
    python -m scripts.bench.counted_step --model 7b --tokens 2048

Without a GPU, and with no clock: seconds are those of an H100's peaks (989 TFLOP/s in bfloat16,
3.35 TB/s), reached in full. Each operator of the forward and the backward counts as one kernel that
reads its inputs and writes its outputs. Liger-Kernel's layers count as what they are: one kernel
each way. Weights to an engine on the same GPU are counted by the way that they take.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import flop_registry

from mmr1 import attention
from mmr1.rollout.distribution import Distribution
from mmr1.trainer.forward.scores import completion_scores
from mmr1.trainer.models import fused_layers
from mmr1.vision import tower_attention
from tests.gpu_paths.stand_in import BACKEND, DEVICE, StandIn, full_size_model, group

FLOPS, BANDWIDTH = 989e12, 3.35e12
PCIE = 25e9
"""Bytes per second of a copy between a GPU and pageable memory, at the most."""
VIEWS = {"view", "_unsafe_view", "transpose", "permute", "t", "expand", "slice", "select", "split",
         "unsqueeze", "squeeze", "detach", "alias", "as_strided", "narrow", "unbind", "lift_fresh",
         "empty", "empty_like", "empty_strided", "new_empty", "split_with_sizes", "chunk",
         "resize_", "is_same_size", "_reshape_alias", "unflatten", "new_empty_strided"}  # fmt: skip
ATTENTION = {"_flash_attention_forward", "_flash_attention_backward"}
SPARSE = {"gather", "scatter_add_", "index_fill_"}
PRODUCTS = {"mm", "addmm", "bmm", "baddbmm", "convolution", "convolution_backward"}


@dataclass
class Kind:
    """One kind of work.

    Attributes:
        bytes: Read and written.
    """

    kernels: int = 0
    flops: float = 0.0
    bytes: float = 0.0

    @property
    def seconds(self) -> float:
        return max(self.flops / FLOPS, self.bytes / BANDWIDTH)


@dataclass
class Count(TorchDispatchMode):
    """Counts operators on the stand-in device, by kind of work.

    Attributes:
        vocabulary: The size that tells the log-prob head's tensors from others.
    """

    vocabulary: int
    kinds: dict[str, Kind] = field(default_factory=lambda: defaultdict(Kind))
    seconds: dict[str, float] = field(default_factory=lambda: defaultdict(float))

    def __post_init__(self) -> None:
        super().__init__()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        name = func.overloadpacket.__name__
        read = {key: value for key, value in (kwargs or {}).items() if key != "out"}
        tensors = [t for t in tree_leaves((args, read, out)) if _is_there(t)]
        if name not in VIEWS and any(_is_there(t) for t in tree_leaves(out)):
            sizes = [t.numel() * t.element_size() for t in tensors]
            # Of the largest tensors these touch an element or two of a row.
            size = sum(s for s in sizes if name not in SPARSE or s < max(sizes))
            count = flop_registry.get(func.overloadpacket)
            given = args[:3] if name == "addmm" else args  # its formula takes no type
            flops = float(count(*given, **(kwargs or {}), out_val=out)) if count else 0.0
            if name in ATTENTION:
                flops = _attention_flops(name, args)
            self.add(self._kind(name, tensors), flops, size)
        return out

    def add(self, kind: str, flops: float, size: float) -> None:
        own = self.kinds[kind]
        own.kernels, own.flops, own.bytes = own.kernels + 1, own.flops + flops, own.bytes + size
        self.seconds[kind] += max(flops / FLOPS, size / BANDWIDTH)

    def _kind(self, name: str, tensors: list[torch.Tensor]) -> str:
        if any(self.vocabulary in t.shape for t in tensors) and name != "embedding":
            return "vocabulary"
        if name in ATTENTION:
            return "attention"
        return "products" if name in PRODUCTS else "element-wise"


def _is_there(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.device.type == DEVICE.type


def _attention_flops(name: str, args: Any) -> float:
    """FLOPs of the blocks, as if all had average lengths; causal ones are half."""
    shift = 1 if name.endswith("backward") else 0
    q, k = args[shift], args[shift + 1]
    ends = args[6 if shift else 3]
    blocks = max(1, len(ends) - 1)
    products = 5 if shift else 2
    return products * 2 * q.shape[0] * (k.shape[0] / blocks) * q.shape[1] * q.shape[2] / 2


class _Kernel(torch.autograd.Function):
    """One kernel each way that reads its inputs and writes tensors like its first ones."""

    @staticmethod
    def forward(ctx: Any, count: Count, outputs: int, *inputs: torch.Tensor) -> Any:
        ctx.count, ctx.inputs = count, inputs
        outs = tuple(torch.empty_like(t) for t in inputs[:outputs])
        count.add("element-wise", 0.0, _bytes((*inputs, *outs)))
        return outs if outputs > 1 else outs[0]

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        made = [torch.empty_like(t) if t.requires_grad else None for t in ctx.inputs]
        written = [t for t in made if t is not None]
        ctx.count.add("element-wise", 0.0, _bytes((*ctx.inputs, *gradients, *written)))
        return None, None, *made


def _bytes(tensors: tuple[torch.Tensor, ...]) -> float:
    return float(sum(t.numel() * t.element_size() for t in tensors))


@contextmanager
def liger(count: Count) -> Iterator[None]:
    """Liger-Kernel's functions, as kernels that count."""
    functional = ModuleType("liger_kernel.transformers.functional")
    functional.liger_rms_norm = lambda x, w, eps, in_place: _Kernel.apply(count, 1, x, w)
    functional.liger_swiglu = lambda gate, up: _Kernel.apply(count, 1, gate, up)
    functional.liger_rope = lambda q, k, cos, sin: _Kernel.apply(count, 2, q, k, cos, sin)
    before = dict(sys.modules), fused_layers._interprets
    for name in ("liger_kernel", "liger_kernel.transformers"):
        sys.modules[name] = ModuleType(name)
    sys.modules[functional.__name__] = functional
    fused_layers._interprets = lambda: True
    try:
        yield
    finally:
        for name in ("liger_kernel", "liger_kernel.transformers", functional.__name__):
            sys.modules.pop(name)
            if name in before[0]:
                sys.modules[name] = before[0][name]
        fused_layers._interprets = before[1]


@contextmanager
def device() -> Iterator[None]:
    """The stand-in, with the varlen kernel for the heads that a GPU has it for."""

    def has_varlen_kernel(query: torch.Tensor) -> bool:
        return query.dtype == torch.bfloat16 and query.shape[-1] % 8 == 0

    modules = (attention, tower_attention)
    before = [module.has_varlen_kernel for module in modules]
    for module in modules:
        module.has_varlen_kernel = has_varlen_kernel
    BACKEND.available = True
    try:
        with StandIn():
            yield
    finally:
        BACKEND.available = False
        for module, own in zip(modules, before, strict=True):
            module.has_varlen_kernel = own


def counted(name: str, n: int, tokens: int, fused: bool) -> tuple[Count, float]:
    """The update of a group with an image of 1,024 tokens, and the bytes of the model's weights."""
    with device():
        model = full_size_model(f"qwen2_5_vl_{name}")
        weights = sum(p.numel() * p.element_size() for p in model.parameters())
        count = Count(model.config.get_text_config().vocab_size)
        groups = [group([tokens] * n, (1, 64, 64))]
        with liger(count):
            if fused:
                fused_layers.fuse_layers(model)
            with count:
                scores = completion_scores(model, groups, Distribution(forbidden=(151655, 151656)))
                scores.logprobs.sum().backward()
    return count, weights


def report(count: Count) -> dict[str, dict[str, float]]:
    total = sum(count.seconds.values())
    rows = {
        kind: {
            "kernels": own.kernels,
            "TFLOP": own.flops / 1e12,
            "GB": own.bytes / 1e9,
            "ms": 1e3 * count.seconds[kind],
            "share": count.seconds[kind] / total,
        }
        for kind, own in sorted(count.kinds.items())
    }
    rows["all"] = {key: sum(row[key] for row in rows.values()) for key in next(iter(rows.values()))}
    return rows


def handed_over(weights: float) -> dict[str, float]:
    """GB over PCIe for the weights of a step, by the way that they take on one GPU."""
    return {"shared memory": 2 * weights / 1e9, "ipc": 0.0}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", choices=("3b", "7b"), default="3b")
    parser.add_argument("--n", type=int, default=8)
    parser.add_argument("--tokens", type=int, default=1024, help="of each completion")
    parser.add_argument("--output", type=Path, help="JSON")
    args = parser.parse_args()
    result: dict[str, Any] = {}
    for layers in ("plain", "fused"):
        count, weights = counted(args.model, args.n, args.tokens, fused=layers == "fused")
        result[layers] = rows = report(count)
        table = Table("", "kernels", "TFLOP", "GB", "ms", "share", title=f"{layers} layers")
        for kind, row in rows.items():
            numbers = (f"{row['kernels']:.0f}", f"{row['TFLOP']:.1f}", f"{row['GB']:.0f}")
            table.add_row(kind, *numbers, f"{row['ms']:.0f}", f"{row['share']:.0%}")
        Console(highlight=False).print(table)
    result["weights over PCIe, GB"] = over = handed_over(weights)
    for way, size in over.items():
        print(f"weights by {way}: {size:.1f} GB over PCIe, {size * 1e9 / PCIE:.2f} s at the least")
    if args.output:
        args.output.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
