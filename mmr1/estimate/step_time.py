"""The time of each phase of a step on a GPU, by FLOPs, bytes and kernels: a calculation.

It is there to be compared with a first run. Peaks are the vendor's, and the shares of them that are
reached are assumed. Element-wise work and the log-prob head are counted as
``scripts/bench/counted_step.py`` counts them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from mmr1.config import Config, VllmArguments
from mmr1.estimate.load import Load
from mmr1.estimate.memory import activation_elements, checkpointed_layers
from mmr1.estimate.shapes import Shapes, read_shapes
from mmr1.trainer.algorithm import build_algorithm
from mmr1.vision.families.family import ModelShape

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
class Machine:
    """An H100 SXM node: its vendor's figures, and assumed efficiencies."""

    flops: float = 989e12
    products_reached: float = 0.7  # of the peak, by large products in bfloat16
    memory_bandwidth: float = 3.35e12
    bandwidth_reached: float = 0.6
    inside_node: float = 450e9  # bytes per second and GPU, NVLink, one direction
    between_nodes: float = 50e9  # 400 Gbit/s a GPU
    host: float = 5e9  # bytes per second of a copy between a GPU and pageable memory
    gpus_per_node: int = 8

    def link(self, gpus: int) -> float:
        """Bytes per second between so many GPUs, on as few nodes as hold them."""
        return self.inside_node if gpus <= self.gpus_per_node else self.between_nodes


@dataclass(frozen=True, slots=True)
class Step:
    """The work of a training step.

    Attributes:
        groups: Prompts.
        n: Completions of each.
        load: Tokens of a prompt and a completion.
        weights: Parameters of the model.
        vocabulary: Tokens that the head tells apart.
    """

    model: ModelShape
    weights: float
    vocabulary: int
    groups: int
    n: int
    load: Load

    @property
    def prompt_flops(self) -> float:
        """FLOPs of a prompt's forward, its media included."""
        language, prompt = self.model.language, self.load.prompt
        attention = 2 * language.layers * language.queries * prompt**2
        text = prompt * language.row_flops + attention
        return text + self.load.vision * self.model.vision_token_flops

    @property
    def group_flops(self) -> float:
        """FLOPs of forward and backward of a group, its prompt once."""
        language, tokens = self.model.language, self.n * self.load.completion
        attended = self.load.prompt + self.load.completion / 2
        completions = (
            tokens * (language.row_flops + 4 * language.layers * language.queries * attended)
            + tokens * 2 * language.hidden * self.vocabulary
        )
        return 3 * (self.prompt_flops + completions)

    @property
    def cache_bytes(self) -> float:
        """Keys and values that each decoding step of all completions reads, in bfloat16."""
        language = self.model.language
        held = self.load.prompt + self.load.completion / 2
        return self.groups * self.n * held * 2 * 2 * language.layers * language.keys


def step_of(config: Config, shapes: Shapes, load: Load) -> Step:
    """The work of a step of this configuration."""
    return Step(
        shapes.model,
        shapes.weights,
        shapes.vocabulary,
        config.data.train_batch_size,
        config.rollout.n,
        load,
    )


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
    flops = machine.flops * machine.products_reached
    engines = config.engines * config.rollout.gpus_per_engine
    return [
        *_rollout(config, step, engines, flops, bandwidth),
        *_scoring(config, step, flops),
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
    each = 1 if _in_8_bits(config) else 2
    read = (each * step.weights + step.cache_bytes / config.engines) / (width * bandwidth)
    host = sequences * HOST_S
    yield Phase(
        "decoding",
        step.load.completion * max(read, host),
        "memory" if read > host else "the host's work on each sequence",
    )


def _in_8_bits(config: Config) -> bool:
    engine = config.rollout.engine
    return isinstance(engine, VllmArguments) and engine.engine_kwargs.get("quantization") == "fp8"


def _scoring(config: Config, step: Step, flops: float) -> Iterator[Phase]:
    """Each model's forward pass over the rollout, as the experience is built; none behind a server.

    A reference or critic of another size is counted as the policy.
    """
    groups = -(-step.groups // config.resources.ranks)
    for scorer in sorted(build_algorithm(config.algorithm).scorers):
        if scorer == "reference" and config.algorithm.reference_is_served:
            continue
        yield Phase(f"log-probs: {scorer}", groups * step.group_flops / 3 / flops, "products")


def _update(
    config: Config, step: Step, fused: bool, flops: float, bandwidth: float
) -> Iterator[Phase]:
    ranks = config.resources.ranks
    learners = 1 if config.algorithm.critic is None else 2
    groups = -(-step.groups // ranks) * config.algorithm.ppo_epochs * learners
    # The forward, a third of the work, of checkpointed layers runs twice.
    again = 1 + checkpointed_layers(config, step.model) / step.model.language.layers / 3
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
