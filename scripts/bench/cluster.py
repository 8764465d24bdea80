"""How a step would scale over GPUs: a calculation, nothing here is measured on a GPU.

    python scripts/bench/cluster.py            # 3B, 7B, 32B and 72B on 8 to 1,024 GPUs

FLOPs are counted from shapes, within 2.5 % of ``step.py`` for 3B and 7B. Bytes are counted as in
``mmr1 doctor --estimate``. A node has 8 GPUs with the figures below. Computation and all-gather
overlap; rollouts are synchronous.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from pathlib import Path

import common
from matplotlib import pyplot as plt

GPU_COUNTS = (8, 64, 256, 1024)
PROMPTS_PER_GPU, GROUP, IMAGE, TEXT, RESPONSE = 8, 8, 1024, 100, 512


@dataclass(frozen=True)
class Machine:
    """Vendor figures of an H100 SXM node, and the shares of them assumed to be reached."""

    flops: float = 989e12
    utilisation: float = 0.35
    memory_bandwidth: float = 3.35e12
    bandwidth_reached: float = 0.6
    inside_node: float = 450e9  # bytes per second and GPU, NVLink, one direction
    between_nodes: float = 50e9  # 400 Gbit/s a GPU
    gpus_per_node: int = 8


@dataclass(frozen=True)
class Model:
    """Published shapes of Qwen2.5-VL."""

    name: str
    parameters: float
    hidden: int
    intermediate: int
    layers: int
    heads: int
    kv_heads: int
    engine_gpus: int

    @property
    def kv_bytes(self) -> int:
        return 2 * 2 * self.layers * self.kv_heads * (self.hidden // self.heads)


MODELS = (
    Model("3B", 3.75e9, 2048, 11008, 36, 16, 2, 1),
    Model("7B", 8.29e9, 3584, 18944, 28, 28, 4, 1),
    Model("32B", 33.5e9, 5120, 27648, 64, 40, 8, 2),
    Model("72B", 73.4e9, 8192, 29568, 80, 64, 8, 4),
)
VISION_FLOPS = 5.5e9  # of a merged vision token, forward; all sizes have the same vision tower
VOCABULARY = 151_936


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--output", type=Path, default=Path("runs/bench"))
    output = parser.parse_args().output
    machine = Machine()
    rows = [row(model, gpus, machine) for model in MODELS for gpus in GPU_COUNTS]
    common.table(rows)
    figure, axes = plt.subplots(figsize=(6, 3.5))
    for model in MODELS:
        own = [r for r in rows if r["model"] == model.name]
        axes.plot([r["GPUs"] for r in own], [r["efficiency"] for r in own], "o-", label=model.name)
    axes.set(xscale="log", xlabel="GPUs", ylabel="tokens/s/GPU, of that on 8", ylim=(0, 1.05))
    axes.legend()
    common.save(output, "cluster", {"rows": rows}, figure)


def row(model: Model, gpus: int, machine: Machine) -> dict[str, object]:
    seconds = step_seconds(model, gpus, machine)
    at_eight = step_seconds(model, GPU_COUNTS[0], machine)
    tokens = PROMPTS_PER_GPU * (IMAGE + TEXT + GROUP * RESPONSE)
    total = sum(seconds.values())
    return {
        "model": model.name,
        "GPUs": gpus,
        "state GiB/rank": 18 * model.parameters / gpus / 2**30,
        "sync GiB": 2 * model.parameters / 2**30,
        **{f"{name} s": value for name, value in seconds.items()},
        "tokens/s/GPU": tokens / total,
        "efficiency": sum(at_eight.values()) / total,
    }


def step_seconds(model: Model, gpus: int, machine: Machine) -> dict[str, float]:
    """Seconds of rollout, update and weight sync of one step; all GPUs have equal shares."""
    compute = update_flops(model) * PROMPTS_PER_GPU / (machine.flops * machine.utilisation)
    link = machine.inside_node if gpus <= machine.gpus_per_node else machine.between_nodes
    # A group is a micro-batch. Each all-gathers bf16 weights twice and reduce-scatters float32
    # gradients.
    gathered = PROMPTS_PER_GPU * (2 + 2 + 4) * model.parameters * (1 - 1 / gpus) / link
    return {
        "rollout": rollout_seconds(model, machine),
        "update": max(compute, gathered),
        # One rank sends all weights; a tree broadcast to the engines takes the time of one link.
        "sync": 2 * model.parameters / link,
    }


def update_flops(model: Model) -> float:
    """FLOPs of forward and backward of one group, with prefix sharing."""
    prompt, completions = IMAGE + TEXT, GROUP * RESPONSE
    head = model.hidden // model.heads
    layer = 2 * model.hidden * (2 * model.hidden + 2 * model.kv_heads * head)
    layer += 6 * model.hidden * model.intermediate
    attention = 4 * model.hidden * (prompt**2 / 2 + completions * (prompt + RESPONSE / 2))
    language = model.layers * ((prompt + completions) * layer + attention)
    return 3 * (language + IMAGE * VISION_FLOPS + completions * 2 * model.hidden * VOCABULARY)


def rollout_seconds(model: Model, machine: Machine) -> float:
    """Decoding is memory-bound: each token step reads the weights and all KV caches."""
    sequences = PROMPTS_PER_GPU * GROUP * model.engine_gpus
    cache = sequences * (IMAGE + TEXT + RESPONSE / 2) * model.kv_bytes
    read = (2 * model.parameters + cache) / model.engine_gpus
    prefill = (
        PROMPTS_PER_GPU
        * (2 * model.parameters * (IMAGE + TEXT) + IMAGE * VISION_FLOPS)
        / (machine.flops * machine.utilisation)
    )
    reached = machine.memory_bandwidth * machine.bandwidth_reached
    return prefill + RESPONSE * read / reached


if __name__ == "__main__":
    main()
