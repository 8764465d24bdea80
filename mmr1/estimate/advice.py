"""Advice for a configuration that does not fit its GPUs."""

from __future__ import annotations

import math

from mmr1.config import Config
from mmr1.estimate.load import Load
from mmr1.estimate.memory import (
    GIB,
    Estimate,
    bytes_while_sampling,
    bytes_while_sending,
    estimate,
)
from mmr1.estimate.shapes import read_shapes

_WIDER = "rollout.engine.tensor_parallel_size"
ASLEEP = 2 * GIB  # assumed of an engine that sleeps: its CUDA context, graphs and buffers


def advice(config: Config, load: Load, memory: float, on_cpu: bool = False) -> list[str]:
    """Changes to the configuration, the most helpful first; empty if it fits such devices.

    Args:
        on_cpu: Whether the run is on a CPU, as for :func:`estimate`.

    Raises:
        ValueError: The model's configuration cannot be read.
    """
    result = estimate(config, load, on_cpu)
    room = memory
    if not config.distributed and config.samples:  # one process: they share the device
        room = memory * (1 - config.gpu_memory_utilization)
    lines = []
    engine_memory = memory * config.gpu_memory_utilization
    weights = _engine_weights(result)
    if config.rollout.colocated and config.samples:
        sending = bytes_while_sending(config, result) + weights - engine_memory
        kept = max(bytes_while_sampling(config, result), sending)
        if result.total("trainer") > memory - ASLEEP:
            lines += _lighter_trainer(config, load, result, memory - ASLEEP)
        elif kept > memory - engine_memory:
            share = 0.95 - kept / memory
            if weights <= 0.9 * share * memory:
                lines.append(
                    f"rollout.engine.gpu_memory_utilization={share:.2f}: the ranks keep "
                    f"{kept / GIB:.1f} GiB while the engine samples"
                )
            elif config.resources.ranks % (2 * config.rollout.gpus_per_engine) == 0:
                wider = 2 * config.rollout.gpus_per_engine
                lines.append(f"an engine on {wider} GPUs ({_WIDER}): half of its weights on each")
            lines += _offloaded_while_sampling(config) + _offloaded(config)
            lines = lines or ["rollout.engine=vllm: ranks and engines on separate GPUs"]
    elif result.total("trainer") > room:
        lines += _lighter_trainer(config, load, result, room)
    if result.total("reward model") > 0.9 * memory:
        more = 2 * config.resources.reward_ranks
        lines.append(f"resources.reward_ranks={more}: half of the reward models' weights each")
    if weights > 0.9 * engine_memory:
        lines.append(
            f"rollout.engine.gpu_memory_utilization={config.gpu_memory_utilization:g} leaves the "
            f"engine {engine_memory / GIB:.1f} GiB and its weights take {weights / GIB:.1f}: "
            f"raise it, or {_WIDER}"
        )
    return lines


def _engine_weights(result: Estimate) -> float:
    of_engine = (i.bytes for i in result.items if (i.owner, i.name) == ("engine", "weights"))
    return next(of_engine, 0.0)


def _lighter_trainer(config: Config, load: Load, result: Estimate, room: float) -> list[str]:
    by_name = {i.name: i.bytes for i in result.items if i.owner == "trainer"}
    shapes, lines = read_shapes(config), []
    half, context = config.trainer.max_tokens_per_gpu // 2, config.resources.context_parallel_size
    # A micro-batch is never less than a prompt with one completion.
    longest = shapes.shares_prompts and context * half < load.prompt + load.completion
    kept, total = by_name["activations of a micro-batch"], result.total("trainer")
    if kept > 0.2 * total and config.model.gradient_checkpointing is not True:
        lines.append(_checkpointing(config, load, room, shapes.model.language.layers))
    if kept > 0.2 * total and not longest:
        lines.append(f"trainer.max_tokens_per_gpu={half}: half of the activations")
    if longest and shapes.cuts_sequences and kept + by_name["backward pass"] > 0.2 * total:
        ranks = math.lcm(config.resources.ranks, 2 * context)
        lines.append(
            f"resources.context_parallel_size={2 * context} {_processes(config, ranks)}: half of a "
            "sequence's activations each"
        )
    if shapes.model.tower is not None and not config.model.freeze_vision_tower:
        lines.append(
            "model.freeze_vision_tower=true: no gradients, moments, activations of the tower"
        )
    if config.model.lora is None:
        lines.append("model.lora={rank: 64}: gradients and moments of the adapters only")
    if not config.distributed or config.rollout.colocated:
        lines += _offloaded(config)
    if by_name.get("reference policy") and not config.distributed:
        lines.append("algorithm.kl.reference.offload=true: there only while it scores (GPU)")
    more = _processes(config, 2 * config.resources.ranks)
    lines.append(f"resources.{more}: half of weights, gradients and moments each")
    shared = config.samples and not config.distributed
    if shared and config.gpu_memory_utilization > 0.3:
        lines.append("rollout.engine.gpu_memory_utilization=0.3: the engine shares this device")
    return lines


def _checkpointing(config: Config, load: Load, room: float, layers: int) -> str:
    """Return the change to the fewest checkpointed layers that fit, or to all."""
    for number in range(1, layers):
        changed = config.changed({"model.gradient_checkpointing": number})
        if estimate(changed, load).total("trainer") <= room:
            return f"model.gradient_checkpointing={number}: activations of {number} layers anew"
    return "model.gradient_checkpointing=true: activations of one layer at a time"


def _processes(config: Config, ranks: int) -> str:
    """A text for so many ranks, and the engines that they then have where they share GPUs."""
    if not config.rollout.colocated:
        return f"ranks={ranks}"
    return f"ranks={ranks} engines={ranks // config.rollout.gpus_per_engine}"


def _offloaded_while_sampling(config: Config) -> list[str]:
    if config.rollout.offload_trainer:
        return []
    moved = "weights and moments in main memory while the engine samples (GPU)"
    return [f"rollout.engine.offload_trainer=true: {moved}"]


def _offloaded(config: Config) -> list[str]:
    if config.optimizer.offload:
        return []
    moved = "moments" if config.resources.ranks > 1 else "moments and float32 weights"
    return [f"optimizer.offload=true: {moved} in main memory, where AdamW runs (GPU)"]
