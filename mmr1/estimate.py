"""``mmr1 doctor --estimate CONFIG``: the device memory that a run needs, from shapes alone.

Bytes are counted as the trainer allocates them; ``activation_elements`` counts what the backward
pass keeps. ``tests/test_estimate.py`` compares that count with what autograd saved.
"""

from __future__ import annotations

import math
from collections.abc import Sequence, Set
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

import torch
from transformers import AutoConfig

from mmr1.config import Config
from mmr1.config.model import ModelConfig
from mmr1.trainer.forward.logprob_head import GPU_CHUNK_ELEMENTS
from mmr1.trainer.models.critic import critic_model
from mmr1.trainer.models.lora import add_adapters
from mmr1.vision.families.family import ModelShape, StackShape
from mmr1.vision.families.loading import find_architecture
from mmr1.vision.features import MAX_BYTES

GIB = 2**30
ASLEEP = 2 * GIB  # assumed of an engine that sleeps: its CUDA context, graphs and buffers
WIDTHS = {"float32": 4, "bfloat16": 2}  # bytes
# NF4: half a byte, a byte of scale for 64 weights, and a float32 for 256 scales (QLoRA, section 3).
IN_4_BITS = 0.5 + 1 / 64 + 4 / (64 * 256)


@dataclass(frozen=True, slots=True)
class Load:
    """Tokens of a prompt (vision included), its vision tokens, and tokens of a completion."""

    prompt: int
    vision: int
    completion: int


@dataclass(frozen=True, slots=True)
class Item:
    """One use of memory."""

    owner: str
    name: str
    bytes: float


@dataclass(frozen=True, slots=True)
class Estimate:
    """Memory of a trainer rank and of a rollout engine, each on its device.

    Attributes:
        items: The uses of memory; ``owner`` is ``trainer`` or ``engine``.
        sync_bytes: Weights that every step sends to each engine.
        advice: What to change, the most helpful first. Empty if it fits, or without ``memory``.
    """

    items: tuple[Item, ...]
    sync_bytes: float
    advice: tuple[str, ...]

    def total(self, owner: str) -> float:
        return sum(item.bytes for item in self.items if item.owner == owner)


def estimate(config: Config, load: Load, memory: float | None = None) -> Estimate:
    """Count the bytes of a run.

    Args:
        load: A long prompt and completion.
        memory: Bytes of one device; None for no advice.

    Raises:
        ValueError: The model's configuration cannot be read.
    """
    shapes = read_shapes(config)
    items = (*_trainer(config, shapes, load), *_engine(config, shapes, load))
    without_advice = Estimate(items, shapes.weights * WIDTHS[config.model.dtype], ())
    if memory is None:
        return without_advice
    return Estimate(
        items,
        without_advice.sync_bytes,
        tuple(_advice(config, shapes, load, without_advice, memory)),
    )


def longest_load(config: Config) -> Load:
    """The longest prompt and completion of a configuration; the prompt is all vision if it can be.

    Raises:
        ValueError: The model's configuration cannot be read, or there is no room for a prompt.
    """
    prompt, completion = config.max_prompt_tokens, config.rollout.sampling.max_tokens
    if prompt < 1:
        raise ValueError(
            f"rollout.max_model_len={config.rollout.max_model_len} leaves no room for a prompt "
            f"beside rollout.sampling.max_tokens={completion}; raise the one or lower the other"
        )
    sees = read_shapes(config).model.tower is not None
    return Load(prompt, prompt if sees else 0, completion)


def trainer_bytes(config: Config, shapes: Shapes, load: Load, ranks: int) -> float:
    """Bytes of one of so many ranks."""
    resources = config.resources.model_copy(update={"ranks": ranks})
    with_ranks = config.model_copy(update={"resources": resources})
    return sum(item.bytes for item in _trainer(with_ranks, shapes, load))


@dataclass(frozen=True, slots=True)
class Shapes:
    """Numbers of elements of a model's weights, and the sizes of its layers.

    Attributes:
        weights: Adapters not counted.
        quantized: Those of them that the trainer has in 4 bits, whole on each rank; they are not
            counted in ``tower``, ``layer`` and ``outside_layers``.
        trained: Weights or adapters that have a gradient.
        adapters: Of LoRA, if there are any.
        tower: Of the vision tower.
        layer: Of one layer of the language model.
        outside_layers: Of the embeddings and what else ranks gather for a whole forward.
        output: Of the output embedding.
        trains_output: It has a gradient, and so have the layers.
        vocabulary: Tokens of the output embedding.
        model: Sizes of the layers.
        shares_prompts: Completions share their prompt in the forward.
    """

    weights: int
    quantized: int
    trained: int
    adapters: int
    tower: int
    layer: int
    outside_layers: int
    output: int
    trains_output: bool
    vocabulary: int
    model: ModelShape
    shares_prompts: bool


def read_shapes(config: Config, key: str = "model.path") -> Shapes:
    """Build the model on torch's ``meta`` device, which takes no memory, and count.

    Raises:
        ValueError: Its configuration cannot be read; names the key.
    """
    return _shapes(config.model, key)


@lru_cache(maxsize=16)  # a command asks several times
def _shapes(config: ModelConfig, key: str) -> Shapes:
    try:
        hf = AutoConfig.from_pretrained(config.path)
    except (OSError, ValueError) as error:
        raise ValueError(f"{key} '{config.path}' has no configuration to read ({error})") from error
    architecture = find_architecture(config.path)
    with torch.device("meta"):
        model = architecture.auto_class.from_config(hf)
    weights = _count(model)
    parts = architecture.parts(model)
    lora = config.lora
    in_4_bits = _in_4_bits(model, parts.lm_head) if lora and lora.load_in_4bit else set()
    quantized = sum(p.numel() for p in in_4_bits)
    tower = 0 if parts.tower is None else _count(parts.tower, without=in_4_bits)
    # What ranks gather and free by itself, or do not shard.
    inside = [*parts.layers]
    if config.freeze_vision_tower and parts.tower is not None:
        inside.append(parts.tower)
        parts.tower.requires_grad_(False)
    else:
        inside += [*parts.tower_blocks, *parts.tower_mergers]
    layered = sum(_count(module, without=in_4_bits) for module in inside)
    layer = _count(parts.layers[0], without=in_4_bits)
    if lora is not None:
        model = add_adapters(model, lora, config.freeze_vision_tower)
    output = parts.lm_head.weight
    return Shapes(
        weights=weights,
        quantized=quantized,
        trained=_count(model, trained=True),
        adapters=_count(model) - weights,
        tower=tower,
        layer=layer,
        outside_layers=weights - quantized - layered,
        output=output.numel(),
        trains_output=output.requires_grad,
        vocabulary=len(output),
        model=architecture.shape(hf),
        shares_prompts=architecture.shares_prompts,
    )


def _in_4_bits(model: torch.nn.Module, lm_head: torch.nn.Module) -> set[torch.Tensor]:
    """What ``model.lora.load_in_4bit`` quantizes."""
    linear = (m for m in model.modules() if isinstance(m, torch.nn.Linear) and m is not lm_head)
    return {module.weight for module in linear}


def _count(
    module: torch.nn.Module, trained: bool = False, without: Set[torch.Tensor] = frozenset()
) -> int:
    counted = (p for p in module.parameters() if p.requires_grad or not trained)
    return sum(p.numel() for p in counted if p not in without)


def activation_elements(model: ModelShape) -> tuple[float, float]:
    """Elements kept for the backward pass: per token in all layers, and per vision token."""
    language = _layer_elements(model.language) * model.language.layers
    tower = model.tower
    if tower is None:
        return language, 0.0
    return language, _layer_elements(tower) * tower.layers * tower.rows_per_token


def _layer_elements(stack: StackShape) -> float:
    """Elements that a layer keeps of each of its rows.

    An RMSNorm keeps its input, the normalised and the scaled value, a LayerNorm its input and
    output; rotary embedding keeps queries and keys before, swapped and after; attention its values,
    output and log-sum-exp; an MLP its first projection before and after the activation, and one
    with a gate the other branch and their product.
    """
    of_norms = (4 if stack.layer_norm else 6) * stack.hidden
    of_attention = 4 * stack.queries + 4 * stack.keys + stack.heads
    if stack.normed_heads:
        of_attention += 2 * (stack.queries + stack.keys)
    of_mlp = (4 if stack.gated else 2) * stack.intermediate
    if stack.experts:  # each has a copy of its rows, and an output that is weighted
        of_mlp = stack.experts * (of_mlp + 2 * stack.hidden)
    return of_norms + of_attention + of_mlp


def _trainer(config: Config, shapes: Shapes, load: Load) -> list[Item]:
    """At the peak: in the second micro-batch or later, when all gradients are there."""
    width = WIDTHS[config.model.dtype]
    items = [
        *_training_state(config, shapes),
        Item("trainer", "vision features", _kept_features(config, shapes)),
        Item("trainer", "activations of a micro-batch", _activations(config, shapes, load)),
        Item("trainer", "backward pass", _backward(config, shapes, load)),
    ]
    if config.resources.ranks > 1:
        items.append(Item("trainer", "gathered weights", width * shapes.outside_layers))
    if (reference := _reference(config, shapes)) is not None:
        items.append(Item("trainer", "reference policy", reference))
    if config.algorithm.critic is not None:
        own = config.model_copy(update={"model": critic_model(config, config.algorithm.critic)})
        shapes = read_shapes(own, "algorithm.critic.path")
        state = {item.name: item.bytes for item in _training_state(own, shapes)}
        items.append(Item("trainer", "gradients of the critic", state.pop("gradients")))
        kept = _kept_features(own, shapes)
        items.append(Item("trainer", "critic", sum(state.values()) + kept))
    return items


def _training_state(config: Config, shapes: Shapes) -> list[Item]:
    """A model that learns, between two steps and with its gradients."""
    ranks, width = config.resources.ranks, WIDTHS[config.model.dtype]
    offload = config.optimizer.offload  # to main memory, which is not the device's
    master = 0 if width == 4 or offload or ranks > 1 else 4
    moments = 0 if offload else 8 if config.optimizer.state_dtype == "float32" else 4
    return [
        Item("trainer", "weights", _weights(config, shapes, trains=True)),
        Item("trainer", "gradients", 4 * shapes.trained / ranks),
        Item("trainer", "AdamW moments", moments * shapes.trained / ranks),
        Item("trainer", "float32 master weights", master * shapes.trained / ranks),
    ]


def _reference(config: Config, shapes: Shapes) -> float | None:
    """A second model; None where there is none on the device."""
    algorithm = config.algorithm
    if not algorithm.kl_coef or algorithm.offload_reference or algorithm.reference_is_served:
        return None
    if algorithm.ref_model_path is not None:
        update = {"path": algorithm.ref_model_path, "lora": None}
        own = config.model_copy(update={"model": config.model.model_copy(update=update)})
        return _weights(own, read_shapes(own, "algorithm.ref_model_path"), trains=False)
    # Adapters are switched off instead.
    return _weights(config, shapes, trains=False) if config.model.lora is None else None


def _kept_features(config: Config, shapes: Shapes) -> float:
    """At most: the cache of a frozen tower fills up as the run sees more media."""
    return MAX_BYTES if config.model.freeze_vision_tower and shapes.model.tower else 0


def _weights(config: Config, shapes: Shapes, trains: bool) -> float:
    """On one device. Ranks train float32 shards; a tower that is not trained is not sharded."""
    ranks, width = config.resources.ranks, WIDTHS[config.model.dtype]
    in_4_bits, others = IN_4_BITS * shapes.quantized, shapes.weights - shapes.quantized
    if ranks == 1:
        return in_4_bits + width * others
    trained = shapes.trained if trains else 0
    whole = 0 if trains and not config.model.freeze_vision_tower else shapes.tower
    frozen = others + shapes.adapters - trained - whole
    return in_4_bits + (4 * trained + width * max(0, frozen)) / ranks + width * whole


def _activations(config: Config, shapes: Shapes, load: Load) -> float:
    """What the largest micro-batch keeps for the backward pass; checkpointed, a layer's input."""
    tokens, vision = _micro_batch(config, shapes, load)
    of_token, of_vision_token = activation_elements(shapes.model)
    if config.model.gradient_checkpointing:
        language, tower = shapes.model.language, shapes.model.tower
        of_token = language.hidden * language.layers
        if tower is not None:
            of_vision_token = tower.hidden * tower.layers * tower.rows_per_token
    if config.model.freeze_vision_tower:
        of_vision_token = 0
    return WIDTHS[config.model.dtype] * (tokens * of_token + vision * of_vision_token)


def _backward(config: Config, shapes: Shapes, load: Load) -> float:
    """The most that the backward pass works on beside what is kept: in the head, or in a layer.

    The head has the logits of a chunk, their probabilities and their gradient, and adds the product
    of each chunk to a float32 gradient of its weight. A layer has gradients of half of its
    activations, which are computed again if it is checkpointed. Ranks gather it and the next one,
    and sum up its gradients in float32. Ranks that share sequences gather keys and values, move
    those that are needed side by side, and sum up their gradients in float32.
    """
    width, sharded = WIDTHS[config.model.dtype], config.resources.ranks > 1
    tokens = _micro_batch(config, shapes, load).tokens
    logits = min(GPU_CHUNK_ELEMENTS, shapes.vocabulary * tokens)
    output = shapes.output if shapes.trains_output else 0
    head = (8 + width) * logits + (4 + width) * output
    of_token = width * _layer_elements(shapes.model.language)
    share = 1.5 if config.model.gradient_checkpointing else 0.5
    gathered = 2 * width * shapes.layer if sharded else 0
    summed = (width + (4 if sharded else 0)) * shapes.layer if shapes.trains_output else 0
    if (context := config.resources.context) > 1:
        of_token += (3 * width + 4) * 2 * shapes.model.language.keys * context / share
    return max(head, share * of_token * tokens + gathered + summed + width * output)


class _MicroBatch(NamedTuple):
    """Tokens of a micro-batch, and vision tokens among them."""

    tokens: float
    vision: float


def _micro_batch(config: Config, shapes: Shapes, load: Load) -> _MicroBatch:
    """A rank's part of the largest; no completion is cut from its prompt.

    Ranks that share sequences share the frames of videos too, but not an image: with images that
    are few the vision tokens are more.
    """
    context = config.resources.context
    share = max(1, round(config.rollout.batch_size * context / config.resources.ranks))
    prompts = 1 if shapes.shares_prompts else config.rollout.n  # of a group
    group = prompts * load.prompt + config.rollout.n * load.completion
    vision = prompts * load.vision
    cost = group + config.trainer.vision_token_cost * vision
    groups = min(share, context * config.trainer.micro_batch_tokens / cost)
    if not shapes.shares_prompts:  # a micro-batch is a group, or a part of one
        groups = min(groups, 1)
    tokens = max(groups * group, load.prompt + load.completion)
    return _MicroBatch(tokens / context, max(groups * vision, load.vision) / context)


def _engine(config: Config, shapes: Shapes, load: Load) -> list[Item]:
    language, parallel = shapes.model.language, config.rollout.tensor_parallel_size
    width = WIDTHS[config.rollout_dtype]
    kv = 2 * language.layers * language.keys * width
    prompts = config.rollout.batch_size / config.resources.engines
    tokens = prompts * (load.prompt + config.rollout.n * load.completion)
    return [
        Item("engine", "weights", width * shapes.weights / parallel),
        Item("engine", "KV cache of a whole step", kv * tokens / parallel),
    ]


def _advice(
    config: Config, shapes: Shapes, load: Load, result: Estimate, memory: float
) -> list[str]:
    room = memory
    if not config.resources.distributed:  # one process: trainer and engine share the device
        room = memory * (1 - config.gpu_memory_utilization)
    advice = []
    engine_memory = memory * config.gpu_memory_utilization
    if config.resources.colocate:
        kept = held_while_sampling(result)
        if result.total("trainer") > memory - ASLEEP:
            advice += _lighter_trainer(config, shapes, load, result)
        elif kept > memory - engine_memory:
            advice.append(
                f"rollout.gpu_memory_utilization={max(0.0, 0.95 - kept / memory):.2f}: the ranks "
                f"keep {kept / GIB:.1f} GiB while the engine samples"
            )
            advice += _offloaded(config)
    elif result.total("trainer") > room:
        advice += _lighter_trainer(config, shapes, load, result)
    weights = next(i.bytes for i in result.items if (i.owner, i.name) == ("engine", "weights"))
    if weights > 0.9 * engine_memory:
        advice.append(
            f"rollout.gpu_memory_utilization={config.gpu_memory_utilization:g} leaves the "
            f"engine {engine_memory / GIB:.1f} GiB and its weights take {weights / GIB:.1f}: "
            "raise it, or rollout.tensor_parallel_size"
        )
    return advice


def fits_colocated(config: Config, load: Load, memory: float) -> bool:
    """Do a rank and an engine take turns on a device of so many bytes?

    The engine needs its weights and, at the least, a tenth of them for its cache.
    """
    result = estimate(config, load)
    weights = next(i.bytes for i in result.items if (i.owner, i.name) == ("engine", "weights"))
    learning, sampling = result.total("trainer") + ASLEEP, held_while_sampling(result)
    return max(learning, sampling + 1.1 * weights) <= memory


def held_while_sampling(result: Estimate) -> float:
    """Bytes that a rank keeps while an engine on its GPU samples."""
    of_learning = {
        *("gradients", "gradients of the critic", "gathered weights"),
        *("activations of a micro-batch", "backward pass"),
    }
    items = result.items
    return sum(i.bytes for i in items if i.owner == "trainer" and i.name not in of_learning)


def _lighter_trainer(config: Config, shapes: Shapes, load: Load, result: Estimate) -> list[str]:
    by_name = {i.name: i.bytes for i in result.items if i.owner == "trainer"}
    advice = []
    half, context = config.trainer.micro_batch_tokens // 2, config.resources.context
    # A micro-batch is never less than a prompt with one completion.
    longest = shapes.shares_prompts and context * half < load.prompt + load.completion
    kept, total = by_name["activations of a micro-batch"], result.total("trainer")
    if kept > 0.2 * total and not config.model.gradient_checkpointing:
        advice.append("model.gradient_checkpointing=true: activations of one layer at a time")
    if kept > 0.2 * total and not longest:
        advice.append(f"trainer.micro_batch_tokens={half}: half of the activations")
    if longest and kept + by_name["backward pass"] > 0.2 * total:
        ranks = math.lcm(config.resources.ranks, 2 * context)
        advice.append(
            f"resources.context={2 * context} ranks={ranks}: half of a sequence's activations each"
        )
    if shapes.model.tower is not None and not config.model.freeze_vision_tower:
        advice.append(
            "model.freeze_vision_tower=true: no gradients, moments, activations of the tower"
        )
    if config.model.lora is None:
        advice.append("model.lora={rank: 64}: gradients and moments of the adapters only")
    if not config.resources.distributed or config.resources.colocate:
        advice += _offloaded(config)
    if by_name.get("reference policy") and not config.resources.distributed:
        advice.append("algorithm.offload_reference=true: there only while it scores (GPU)")
    advice.append(
        f"resources.ranks={2 * config.resources.ranks}: half of weights, gradients and moments each"
    )
    if not config.resources.distributed and config.gpu_memory_utilization > 0.3:
        advice.append("rollout.gpu_memory_utilization=0.3: the engine shares this device")
    return advice


def _offloaded(config: Config) -> list[str]:
    if config.optimizer.offload:
        return []
    moved = "moments" if config.resources.ranks > 1 else "moments and float32 weights"
    return [f"optimizer.offload=true: {moved} in main memory, where AdamW runs (GPU)"]


def rows(
    result: Estimate, memory: float | None, colocated: bool = False
) -> Sequence[tuple[str, str, str]]:
    """``(owner, item, GiB)`` for a table, with a total of each owner.

    Args:
        colocated: Trainer and engine share a device.
    """
    table = []
    for owner in ("trainer", "engine"):
        items = [i for i in result.items if i.owner == owner and i.bytes]
        table += [(owner, i.name, f"{i.bytes / GIB:.2f}") for i in items]
        table.append((owner, "total", f"{result.total(owner) / GIB:.2f}"))
    if colocated:
        held = held_while_sampling(result)
        table.append(("trainer", "kept while the engine samples", f"{held / GIB:.2f}"))
    if memory is not None:
        table.append(("device", "memory", f"{memory / GIB:.2f}"))
    return table
