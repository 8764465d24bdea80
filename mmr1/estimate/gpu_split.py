"""Split GPUs into ranks and rollout engines: a calculation from shapes, not a measurement.

It describes the system as it is built: an engine has separate GPUs, ranks hold shards, rank 0
puts the weights together and sends them to the engines, and rollouts are sampled in turn with the
updates or one step ahead of them. Or ranks and engines are colocated, and take turns on all GPUs.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from mmr1.config import Config
from mmr1.estimate.load import Load
from mmr1.estimate.shapes import Shapes
from mmr1.vision.families.family import ModelShape


@dataclass(frozen=True, slots=True)
class Machine:
    """An H100 SXM node: its vendor's figures, and assumed efficiencies."""

    flops: float = 989e12
    utilisation: float = 0.35
    memory_bandwidth: float = 3.35e12
    bandwidth_reached: float = 0.6
    inside_node: float = 450e9  # bytes per second and GPU, NVLink, one direction
    between_nodes: float = 50e9  # 400 Gbit/s a GPU
    host: float = 5e9  # bytes per second of a copy between a GPU and pageable memory
    gpus_per_node: int = 8

    @property
    def compute(self) -> float:
        return self.flops * self.utilisation

    @property
    def reading(self) -> float:
        return self.memory_bandwidth * self.bandwidth_reached

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
        context: Ranks that share each sequence.
    """

    model: ModelShape
    weights: float
    vocabulary: int
    groups: int
    n: int
    load: Load
    context: int = 1

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
        config.resources.context_parallel_size,
    )


@dataclass(frozen=True, slots=True)
class Split:
    """Numbers of ranks and engines, and the times of a step with them.

    Attributes:
        ahead: Rollouts are sampled one step ahead (``rollout.max_off_policy_steps=1``).
        rollout_s, update_s: Seconds of a step's parts.
        ranks_s: Seconds for which the ranks wait for the weights to be put together and sent; with
            rollouts ahead, copied into main memory.
        engines_s: Seconds for which only the engines wait for the weights.
        gpus: Of ranks and engines together.
        colocated: They share these GPUs.
    """

    ranks: int
    engines: int
    ahead: bool
    rollout_s: float
    update_s: float
    ranks_s: float
    engines_s: float
    gpus: int
    colocated: bool = False

    @property
    def step_s(self) -> float:
        learning, sampling = self.update_s + self.ranks_s, self.rollout_s + self.engines_s
        return max(learning, sampling) if self.ahead else learning + sampling

    @property
    def busy(self) -> float:
        """Share of the GPUs' time in rollouts and updates."""
        if self.colocated:
            return (self.rollout_s + self.update_s) / self.step_s
        worked = (self.gpus - self.ranks) * self.rollout_s + self.ranks * self.update_s
        return worked / (self.gpus * self.step_s)


def split(
    step: Step, ranks: int, engines: int, engine_gpus: int, ahead: bool, machine: Machine
) -> Split:
    """Seconds and busy share of one split."""
    gpus, size = ranks + engines * engine_gpus, 2 * step.weights
    gather = size / machine.link(ranks)
    send = size / machine.link(gpus)
    copy = size / machine.host
    return Split(
        ranks,
        engines,
        ahead,
        rollout_s=rollout_seconds(step, engines, engine_gpus, machine),
        update_s=update_seconds(step, ranks, machine),
        ranks_s=gather + (copy if ahead else send),
        engines_s=copy + send if ahead else 0.0,
        gpus=gpus,
    )


def colocated_split(
    step: Step, gpus: int, engine_gpus: int = 1, machine: Machine | None = None
) -> Split:
    """Ranks and engines on the same GPUs; falling asleep and waking up take no time.

    Every rank gathers the weights, and hands them on inside its GPU.
    """
    machine = machine or Machine()
    engines = gpus // engine_gpus
    return Split(
        ranks=gpus,
        engines=engines,
        ahead=False,
        rollout_s=rollout_seconds(step, engines, engine_gpus, machine),
        update_s=update_seconds(step, gpus, machine),
        ranks_s=2 * step.weights / machine.link(gpus),
        engines_s=0.0,
        gpus=gpus,
        colocated=True,
    )


def best_split(
    step: Step,
    gpus: int,
    engine_gpus: int,
    ahead: bool,
    fits: Callable[[int], bool] = lambda ranks: True,
    machine: Machine | None = None,
) -> Split | None:
    """The split with the shortest step; None where none fits.

    Args:
        engine_gpus: GPUs of one engine.
        ahead: Rollouts one step ahead of the updates.
        fits: Has each of so many ranks enough memory?
    """
    machine = machine or Machine()
    choices = [
        split(step, gpus - engines * engine_gpus, engines, engine_gpus, ahead, machine)
        for engines in range(1, (gpus - 1) // engine_gpus + 1)
        if fits(gpus - engines * engine_gpus)
    ]
    return min(choices, key=lambda choice: choice.step_s, default=None)


def rollout_seconds(step: Step, engines: int, engine_gpus: int, machine: Machine) -> float:
    """Seconds of decoding, bound by memory: each token step reads the weights and all KV caches."""
    prefill = step.groups * step.prompt_flops / (engines * engine_gpus * machine.compute)
    read = 2 * step.weights + step.cache_bytes / engines
    return prefill + step.load.completion * read / (engine_gpus * machine.reading)


def update_seconds(step: Step, ranks: int, machine: Machine) -> float:
    """Seconds of an update with a group per micro-batch: each gathers weights twice.

    Computation and communication overlap. What ranks that share sequences tell each other is not
    counted.
    """
    of_rank = -(-step.groups * step.context // ranks)  # whole groups, or parts of so many
    compute = of_rank * step.group_flops / (step.context * machine.compute)
    moved = of_rank * (2 + 2 + 4) * step.weights * (1 - 1 / ranks) / machine.link(ranks)
    return max(compute, moved)
