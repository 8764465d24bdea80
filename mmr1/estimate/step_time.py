"""The time of each phase of a step on a GPU, by FLOPs, bytes and kernels: a calculation.

It is there to be compared with a first run. Peaks are the vendor's, and the shares of them that are
reached are assumed. Element-wise work and the log-prob head are counted as
``scripts/bench/counted_step.py`` counts them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from mmr1.config import Config
from mmr1.estimate.gpu_split import Machine, Step, step_of
from mmr1.estimate.load import Load
from mmr1.estimate.memory import activation_elements
from mmr1.estimate.shapes import read_shapes
from mmr1.vision.families.family import ModelShape

PRODUCTS_REACHED = 0.7
"""Of the peak, by large products in bfloat16; assumed."""
PASSES = {False: 12, True: 4}
"""How often element-wise kernels read or write each activation that autograd keeps, with plain and
with fused layers: the count of Qwen2.5-VL-3B over its activations."""
HEAD_PASSES = 24
"""The same of float32 logits, by the log-prob head."""
LAYER_KERNELS = {False: 143, True: 76}
"""Kernels of a layer's forward and backward, by the same count."""
LAUNCH_S = 4e-6
HOST_S = 20e-6
"""Of a host for each sequence in each step of the engine; measured on a CPU."""
PIPE = 2e9
"""Bytes per second through a pipe between two processes; assumed."""


@dataclass(frozen=True, slots=True)
class Phase:
    """A phase of a step, and the resource that bounds it."""

    name: str
    seconds: float
    bound: str


def phases(config: Config, load: Load, fused: bool, machine: Machine | None = None) -> list[Phase]:
    """The phases of a step in turn, on the ranks and engines of the configuration.

    Args:
        fused: Layers are Liger-Kernel's.
    """
    machine = machine or Machine()
    shapes = read_shapes(config)
    step = step_of(config, shapes, load)
    bandwidth = machine.memory_bandwidth * machine.bandwidth_reached
    flops = machine.flops * PRODUCTS_REACHED
    engines = config.engines * config.rollout.gpus_per_engine
    return [
        *_rollout(config, step, engines, flops, bandwidth),
        *_update(config, step, fused, flops, bandwidth),
        _optimizer(config, shapes.trained, bandwidth, machine),
        _handover(config, 2 * shapes.weights, bandwidth, machine),
    ]


def _rollout(
    config: Config, step: Step, gpus: int, flops: float, bandwidth: float
) -> Iterator[Phase]:
    tower = step.model.tower
    # Patches of 3 x 2 x 14 x 14 numbers, in float32, once for each prompt.
    pixels = step.groups * step.load.vision * (tower.rows_per_token if tower else 0) * 1176 * 4
    yield Phase("media to the engine", pixels / config.engines / PIPE, "a pipe")
    yield Phase("prefill", step.groups * step.prompt_flops / (gpus * flops), "products")
    sequences = step.groups * step.n / config.engines
    width = config.rollout.gpus_per_engine
    read = (2 * step.weights + step.cache_bytes / config.engines) / (width * bandwidth)
    host = sequences * HOST_S
    yield Phase(
        "decoding",
        step.load.completion * max(read, host),
        "memory" if read > host else "the host's work on each sequence",
    )


def _update(
    config: Config, step: Step, fused: bool, flops: float, bandwidth: float
) -> Iterator[Phase]:
    ranks = config.resources.ranks
    groups = -(-step.groups // ranks)
    again = 4 / 3 if config.model.gradient_checkpointing else 1.0
    yield Phase("update: products", again * groups * step.group_flops / flops, "products")
    tokens = step.load.prompt + step.n * step.load.completion
    of_token, of_vision = activation_elements(step.model)
    if config.model.freeze_vision_tower:
        of_vision = 0.0
    elements = groups * (tokens * of_token + step.load.vision * of_vision)
    moved = again * 2 * PASSES[fused] * elements / bandwidth
    launched = again * groups * LAYER_KERNELS[fused] * _layers(step.model) * LAUNCH_S
    yield Phase(
        "update: element-wise",
        max(moved, launched),
        "memory" if moved > launched else "launches",
    )
    logits = 4 * groups * step.n * step.load.completion * step.vocabulary
    yield Phase("update: log-prob head", HEAD_PASSES * logits / bandwidth, "memory")


def _layers(model: ModelShape) -> int:
    return model.language.layers + (0 if model.tower is None else model.tower.layers)


def _optimizer(config: Config, trained: float, bandwidth: float, machine: Machine) -> Phase:
    """The optimizer: AdamW reads and writes weights and moments, and reads gradients."""
    own = trained / config.resources.ranks
    if config.optimizer.offload:  # gradients there, weights back
        return Phase("AdamW", own * (4 + 2) / machine.host, "the link to main memory")
    moments = 8 if config.optimizer.state_dtype == "float32" else 4
    return Phase("AdamW", own * (2 * (4 + moments) + 4 + 2) / bandwidth, "memory")


def _handover(config: Config, size: float, bandwidth: float, machine: Machine) -> Phase:
    alone = not config.distributed and config.rollout.gpus_per_engine == 1
    if config.rollout.uses_vllm and (config.rollout.colocated or alone):
        # Packed, and loaded: each reads and writes.
        return Phase("weights to the engine", 4 * size / bandwidth, "memory, in the GPU")
    if not config.rollout.uses_vllm and not config.distributed:
        return Phase("weights to the engine", 0.0, "it samples from the policy")
    if not config.distributed:
        return Phase("weights to the engine", 2 * size / machine.host, "main memory")
    gpus = config.resources.ranks + config.engines
    return Phase("weights to the engine", 2 * size / machine.link(gpus), "the link between GPUs")
