"""The device memory that a run needs, from shapes alone.

Bytes are counted as the trainer allocates them; ``activation_elements`` counts what the backward
pass keeps. ``tests/estimate/test_memory.py`` compares that count with what autograd saved.
"""

from __future__ import annotations

from collections.abc import Set
from dataclasses import dataclass
from typing import NamedTuple

from mmr1.algorithms.advantages.distillation import ServedModel, TeacherModel
from mmr1.config import Config
from mmr1.estimate.load import Load
from mmr1.estimate.shapes import Shapes, read_shapes
from mmr1.rollout.engines import abilities
from mmr1.trainer.forward.logprob_head import CPU_CHUNK_ELEMENTS, GPU_CHUNK_ELEMENTS
from mmr1.trainer.models.critic import critic_model
from mmr1.trainer.models.loading import vision_token_cost
from mmr1.trainer.models.scalar_model import is_scalar_model
from mmr1.trainer.models.streaming import PIECE_BYTES
from mmr1.trainer.sampling.reward_models import named_reward_models, reward_model_config
from mmr1.vision.families.family import ModelShape, StackShape
from mmr1.vision.families.loading import find_architecture
from mmr1.vision.features import MAX_BYTES

GIB = 2**30
WIDTHS = {"float32": 4, "bfloat16": 2, "float16": 2}  # bytes
# NF4: half a byte, a byte of scale for 64 weights, and a float32 for 256 scales (QLoRA, section 3).
IN_4_BITS = 0.5 + 1 / 64 + 4 / (64 * 256)


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
        items: The uses of memory; ``owner`` is ``trainer``, ``engine`` or, of one of
            ``resources.reward_ranks``, ``reward model``.
        sync_bytes: Weights that every step sends to each engine; 0 without one.
    """

    items: tuple[Item, ...]
    sync_bytes: float

    def total(self, owner: str) -> float:
        return sum(item.bytes for item in self.items if item.owner == owner)


LIBRARIES = 0.6 * GIB
"""Main memory of a process that has imported Python's, torch's and transformers' code; measured."""


def estimate(config: Config, load: Load, on_cpu: bool = False) -> Estimate:
    """Count the bytes of a run.

    Args:
        load: A long prompt and completion.
        on_cpu: The device is main memory, where libraries lie too.

    Raises:
        ValueError: The model's configuration cannot be read.
    """
    shapes = read_shapes(config)
    rewards = reward_models_bytes(config, load, config.resources.reward_ranks)
    owner = "reward model" if config.distributed else "trainer"
    of_rewards = [Item(owner, "reward models", rewards)] if rewards else []
    libraries = [Item("trainer", "Python and its libraries", LIBRARIES)] if on_cpu else []
    trainer = (*_trainer(config, shapes, load, on_cpu), *libraries)
    if not config.samples:
        return Estimate(trainer, 0)
    items = (*trainer, *of_rewards, *_engine(config, shapes, load))
    return Estimate(items, shapes.weights * WIDTHS[config.model.dtype])


def reward_models_bytes(config: Config, load: Load, ranks: int) -> float:
    """Bytes of the reward models of a run on one of so many ranks; 0 where there are none.

    Weights, what ranks gather of them, and what a layer works on: they only score. One that is not
    there yet is taken to be as large as the policy.

    Raises:
        ValueError: The configuration of one cannot be read.
    """
    total = working = 0.0
    for key, path in named_reward_models(config).items():
        own = reward_model_config(config, path if is_scalar_model(path) else config.model.path)
        shapes, width = read_shapes(own, key), WIDTHS[own.model.dtype]
        total += width * shapes.weights / ranks
        if ranks > 1:
            total += width * (shapes.outside_layers + 2 * shapes.layer)
        tokens = _micro_batch(own, shapes, load).tokens
        working = max(working, width * _layer_elements(shapes.model.language) * tokens)
    return total + working


def bytes_while_sampling(config: Config, result: Estimate) -> float:
    """Bytes that a rank keeps while an engine on its GPU samples."""
    if config.rollout.offload_trainer:
        return _of_trainer(result, {"vision features"})
    of_learning = {
        *("gradients", "gradients of the critic", "gathered weights"),
        *("activations of a micro-batch", "backward pass"),
    }
    return _of_trainer(result, {item.name for item in result.items} - of_learning)


def bytes_while_sending(config: Config, result: Estimate) -> float:
    """Bytes that a rank keeps while it sends its weights to the engine, which has no cache then."""
    held = bytes_while_sampling(config, result)
    if config.rollout.offload_trainer:
        held += _of_trainer(result, {"weights"})
    return held


def _of_trainer(result: Estimate, names: Set[str]) -> float:
    return sum(i.bytes for i in result.items if i.owner == "trainer" and i.name in names)


def checkpointed_layers(config: Config, model: ModelShape) -> int:
    """Return how many layers of the language model compute their activations again."""
    asked, layers = config.model.gradient_checkpointing, model.language.layers
    return asked * layers if isinstance(asked, bool) else min(asked, layers)


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


def _trainer(config: Config, shapes: Shapes, load: Load, on_cpu: bool = False) -> list[Item]:
    """Items at the peak: in the second micro-batch or later, when all gradients exist."""
    width = WIDTHS[config.model.dtype]
    items = [
        *_training_state(config, shapes),
        Item("trainer", "vision features", _kept_features(config, shapes)),
        Item("trainer", "activations of a micro-batch", _activations(config, shapes, load)),
        Item("trainer", "backward pass", _backward(config, shapes, load, on_cpu)),
    ]
    if config.resources.ranks > 1:
        items.append(Item("trainer", "gathered weights", width * shapes.outside_layers))
    if (reference := _reference(config, shapes)) is not None:
        items.append(Item("trainer", "reference policy", reference))
    if config.algorithm.critic is not None:
        own = config.changed(model=critic_model(config, config.algorithm.critic))
        shapes = read_shapes(own, "algorithm.advantage.critic.path")
        state = {item.name: item.bytes for item in _training_state(own, shapes)}
        items.append(Item("trainer", "gradients of the critic", state.pop("gradients")))
        kept = _kept_features(own, shapes)
        items.append(Item("trainer", "critic", sum(state.values()) + kept))
    return items


def _training_state(config: Config, shapes: Shapes) -> list[Item]:
    """Items of a model that learns, between two steps and with its gradients."""
    ranks, width = config.resources.ranks, WIDTHS[config.model.dtype]
    shards = _shards(config)
    offload = config.optimizer.offload  # to main memory, which is not the device's
    master = 0 if width == 4 or offload or ranks > 1 else 4
    moments = 0 if offload else 8 if config.optimizer.state_dtype == "float32" else 4
    return [
        Item("trainer", "weights", _weights(config, shapes, trains=True)),
        Item("trainer", "gradients", 4 * shapes.trained / shards),
        Item("trainer", "AdamW moments", moments * shapes.trained / shards),
        Item("trainer", "float32 master weights", master * shapes.trained / shards),
    ]


def _reference(config: Config, shapes: Shapes) -> float | None:
    """GiB of a second model; None where none is on the device."""
    reference = config.algorithm.reference
    if reference is None or isinstance(reference, ServedModel) or reference.offload:
        return None
    if isinstance(reference, TeacherModel):
        own = config.changed({"model.path": reference.path, "model.lora": None})
        return _weights(own, read_shapes(own, "algorithm.kl.reference.path"), trains=False)
    # Adapters are switched off instead.
    return _weights(config, shapes, trains=False) if config.model.lora is None else None


def saving_bytes(config: Config) -> float:
    """Additional main memory of rank 0 while it saves a checkpoint.

    It is written piece by piece, but in the background from a copy of it all. A weight that ranks
    put together, or that adapters are merged into, is there too on a CPU; on a GPU it is on that.
    """
    shapes, width = read_shapes(config), WIDTHS[config.model.dtype]
    made = config.resources.ranks > 1 or config.model.lora is not None
    taken = PIECE_BYTES + (width * shapes.largest if made else 0)
    if not config.trainer.async_save:
        return taken
    taken += width * shapes.weights
    if config.trainer.save_only_model:
        return taken
    moments = 8 if config.optimizer.state_dtype == "float32" else 4
    return taken + (4 + moments) * shapes.trained / _shards(config)


def _kept_features(config: Config, shapes: Shapes) -> float:
    """GiB of kept vision features, at most: the cache fills as the run sees more media."""
    return MAX_BYTES if config.model.freeze_vision_tower and shapes.model.tower else 0


def _weights(config: Config, shapes: Shapes, trains: bool) -> float:
    """GiB on one device. Ranks train float32 shards; an untrained tower is not sharded."""
    ranks, width = config.resources.ranks, WIDTHS[config.model.dtype]
    in_4_bits, others = IN_4_BITS * shapes.quantized, shapes.weights - shapes.quantized
    if ranks == 1:
        return in_4_bits + width * others
    trained = shapes.trained if trains else 0
    whole = 0 if trains and not config.model.freeze_vision_tower else shapes.tower
    frozen = others + shapes.adapters - trained - whole
    return in_4_bits + (4 * trained + width * max(0, frozen)) / _shards(config) + width * whole


def _shards(config: Config) -> int:
    """Ranks that share one copy of the model."""
    return config.resources.fsdp_size or config.resources.ranks


def _activations(config: Config, shapes: Shapes, load: Load) -> float:
    """Activations of the largest micro-batch; of a checkpointed layer its input alone."""
    tokens, vision = _micro_batch(config, shapes, load)
    of_token, of_vision_token = activation_elements(shapes.model)
    if layers := checkpointed_layers(config, shapes.model):
        language, tower = shapes.model.language, shapes.model.tower
        of_token -= layers * (_layer_elements(language) - language.hidden)
        if tower is not None:
            of_vision_token = tower.hidden * tower.layers * tower.rows_per_token
    if config.model.freeze_vision_tower:
        of_vision_token = 0
    return WIDTHS[config.model.dtype] * (tokens * of_token + vision * of_vision_token)


def _backward(config: Config, shapes: Shapes, load: Load, on_cpu: bool) -> float:
    """Peak of the backward pass beside activations: in the head, or in a layer.

    The head has the logits of a chunk, their probabilities and their gradient, and adds the product
    of each chunk to a float32 gradient of its weight. A layer has gradients of half of its
    activations, which are computed again if it is checkpointed. Ranks gather it and the next one,
    and sum up its gradients in float32. Ranks that share sequences gather keys and values, move
    those that are needed side by side, and sum up their gradients in float32.
    """
    width, sharded = WIDTHS[config.model.dtype], config.resources.ranks > 1
    tokens = _micro_batch(config, shapes, load).tokens
    chunk = CPU_CHUNK_ELEMENTS if on_cpu else GPU_CHUNK_ELEMENTS
    logits = min(chunk, shapes.vocabulary * tokens)
    output = shapes.output if shapes.trains_output else 0
    head = (8 + width) * logits + (4 + width) * output
    of_token = width * _layer_elements(shapes.model.language)
    share = 1.5 if config.model.gradient_checkpointing else 0.5
    gathered = 2 * width * shapes.layer if sharded else 0
    summed = (width + (4 if sharded else 0)) * shapes.layer if shapes.trains_output else 0
    if (context := config.resources.context_parallel_size) > 1:
        of_token += (3 * width + 4) * 2 * shapes.model.language.keys * context / share
    return max(head, share * of_token * tokens + gathered + summed + width * output)


class _MicroBatch(NamedTuple):
    """Tokens of a micro-batch, and vision tokens among them."""

    tokens: float
    vision: float


def _micro_batch(config: Config, shapes: Shapes, load: Load) -> _MicroBatch:
    """A rank's part of the largest micro-batch; no completion is cut from its prompt.

    Ranks that share sequences of a family share the frames of videos too, but not an image: with
    images that are few the vision tokens are more. Of other models each rank encodes all.
    """
    context = config.resources.context_parallel_size
    share = max(1, round(config.data.train_batch_size * context / config.resources.ranks))
    prompts = 1 if shapes.shares_prompts else config.rollout.n  # of a group
    group = prompts * load.prompt + config.rollout.n * load.completion
    vision = prompts * load.vision
    encoding = context if find_architecture(config.model.path).shares_prompts else 1
    cost = group + vision_token_cost(config) * vision * context / encoding
    groups = min(share, context * config.trainer.max_tokens_per_gpu / cost)
    if not shapes.shares_prompts:  # a micro-batch is a group, or a part of one
        groups = min(groups, 1)
    tokens = max(groups * group, load.prompt + load.completion)
    return _MicroBatch(tokens / context, max(groups * vision, load.vision) / encoding)


def _engine(config: Config, shapes: Shapes, load: Load) -> list[Item]:
    language, parallel = shapes.model.language, config.rollout.gpus_per_engine
    width = WIDTHS[config.rollout_dtype]
    kv = 2 * language.layers * language.keys * width
    prompts = config.data.train_batch_size / config.engines
    tokens = prompts * (load.prompt + config.rollout.n * load.completion)
    # An engine that samples from the policy itself has no weights of its own.
    shared = "shared" in abilities(config).channels and not config.distributed
    return [
        Item("engine", "weights", 0 if shared else width * shapes.weights / parallel),
        Item("engine", "KV cache of a whole step", kv * tokens / parallel),
    ]
