"""The model of a configuration, loaded and made ready to be trained."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any, Protocol, cast

import torch
from safetensors.torch import load_file
from transformers import AutoConfig

from mmr1.config import Config, ModelConfig, SamplingConfig
from mmr1.rollout.distribution import Distribution
from mmr1.routers import watch_routers
from mmr1.trainer.forward.any_model.forward import check_context
from mmr1.trainer.forward.any_model.sharing import Examples, settle
from mmr1.trainer.forward.body import body_of
from mmr1.trainer.forward.micro_batches import ProcessGroup, SingleProcess
from mmr1.trainer.forward.routing import RouterUse
from mmr1.trainer.forward.sequences import ModelInputs
from mmr1.trainer.models.fused_layers import fuse_layers, uses_liger
from mmr1.trainer.models.lora import add_adapters, check_merging, text_ids
from mmr1.trainer.models.packed_model import PackedModel
from mmr1.trainer.models.parts import outside_language_model, parameters_of
from mmr1.trainer.models.quantization import (
    keep_layout,
    loads_in_4_bits,
    quantization,
    refuse_quantized,
)
from mmr1.trainer.models.scalar_model import HEAD_FILE, ScalarModel, is_scalar_model
from mmr1.vision.families.loading import (
    architecture_of,
    find_architecture,
    load_family,
    model_parts,
    unwrapped,
)
from mmr1.vision.families.model_path import dropout_rates, from_pretrained, read_files
from mmr1.vision.features import FeatureCache

logger = logging.getLogger(__name__)

NO_RATES: Mapping[str, float] = MappingProxyType({})


def load_model(config: ModelConfig, key: str = "model.path") -> Any:
    """The model on the GPU if there is one; errors name the configuration's ``key``.

    Raises:
        ValueError: If ``config.path`` has no model, no family fits it, or its weights are missing,
            damaged, pickled or those of another model.
    """
    return _load_weights(config, key).to("cuda" if torch.cuda.is_available() else "cpu")


def check_same_tokens(path: str, other: str, key: str, trust_remote_code: bool) -> None:
    """Check that the model at ``other`` reads what the model at ``path`` writes.

    Raises:
        ValueError: If the models are of different families or have different tokens; the message
            names ``key``.
    """
    if type(find_architecture(path)) is not type(find_architecture(other, key)):
        raise ValueError(f"{key} '{other}' is of another model family than model.path '{path}'")
    tokens, others = (
        load_family(each, trust_remote_code=trust_remote_code).tokenizer.get_vocab()
        for each in (path, other)
    )
    if tokens != others:
        raise ValueError(
            f"{key} '{other}' has other tokens than model.path '{path}', so it cannot score them; "
            "name a model with the same tokenizer"
        )


def load_trainable(
    config: ModelConfig, key: str = "model.path", lr_of_parts: Mapping[str, float] = NO_RATES
) -> Any:
    """The model to be trained: in 4 bits, parts frozen, activations checkpointed, adapters on,
    where asked.

    Args:
        lr_of_parts: Rates of the ``optimizer`` section; parts of rate 0 are frozen.

    Raises:
        ValueError: If ``load_model`` raises it, the adapters fit no layer, or nothing is left to
            train.
    """
    if not loads_in_4_bits(config):
        return _made_trainable(load_model(config, key), config, lr_of_parts)
    model = _load_weights(config, key, **quantization(config))
    return _made_trainable(model, config, lr_of_parts)


def load_trainable_in_main_memory(
    config: ModelConfig, key: str = "model.path", lr_of_parts: Mapping[str, float] = NO_RATES
) -> Any:
    """``load_trainable`` for models that do not fit on the GPU as a whole."""
    return _made_trainable(_load_weights(config, key), config, lr_of_parts)


def trainable_on_meta(
    config: ModelConfig, key: str = "model.path", lr_of_parts: Mapping[str, float] = NO_RATES
) -> Any:
    """``load_trainable`` without any weight, on torch's ``meta`` device, which takes no memory.

    Raises:
        ValueError: If ``config.path`` has no model, or no family fits it.
    """
    auto_class = find_architecture(config.path, key).auto_class
    shapes = from_pretrained(AutoConfig, config.path, config.trust_remote_code)
    with torch.device("meta"):
        model = auto_class.from_config(
            shapes,
            dtype=getattr(torch, config.dtype),
            trust_remote_code=config.trust_remote_code,
        )
        switch_off_dropout(model)
        return _made_trainable(model, config, lr_of_parts)


def _made_trainable(model: Any, config: ModelConfig, lr_of_parts: Mapping[str, float]) -> Any:
    parameters = dict(model.named_parameters())
    if config.freeze_vision_tower:
        for name in outside_language_model(model):
            parameters[name].requires_grad_(False)
    for name in _of_rate_0(model, lr_of_parts):
        parameters[name].requires_grad_(False)
    if not any(p.requires_grad for p in parameters.values()):
        raise ValueError(
            "optimizer.lr_of_parts and model.freeze_vision_tower: nothing is left to train; leave "
            "a rate of 0 out"
        )
    if uses_liger(config):
        fuse_layers(model)
    if config.gradient_checkpointing:
        checkpoint_activations(model, config.gradient_checkpointing)
    if config.lora is None:
        return model
    adapted = add_adapters(model, config.lora, config.freeze_vision_tower)
    if not next(model.parameters()).is_meta:
        check_merging(adapted)
    return adapted


def switch_off_dropout(model: Any) -> None:
    """Set every rate at which the model drops something in training to 0.

    Log-probs of the engine and the reference are computed without dropout, and the policy's
    gradient must be of the same distribution.
    """
    for module in model.modules():
        owners = (module, getattr(module, "config", None))
        for values in (vars(owner) for owner in owners if owner is not None):
            for name in dropout_rates(values):
                values[name] = 0.0
        if isinstance(module, torch.nn.modules.dropout._DropoutNd):
            module.p = 0.0


def checkpoint_activations(model: Any, layers: bool | int) -> None:
    """Recompute activations of a transformers model in its backward pass.

    Args:
        layers: Number of layers of the language model, the first ones; True for all. The layers of
            the vision tower are always among them.

    Raises:
        ValueError: If the model has fewer layers.
    """
    model.gradient_checkpointing_enable({"use_reentrant": False})
    if layers is True:
        return
    own: Any = model_parts(model).layers
    if layers > len(own):
        raise ValueError(
            f"model.gradient_checkpointing={layers}: the language model has {len(own)} layers; "
            "true is all of them"
        )
    for layer in own[layers:]:
        layer.gradient_checkpointing = False


def _of_rate_0(model: Any, lr_of_parts: Mapping[str, float]) -> set[str]:
    """Names of the parameters for which the last part that fits has the rate 0."""
    frozen: set[str] = set()
    if 0 not in lr_of_parts.values():  # parts may name adapters, which are yet to come
        return frozen
    for part, rate in lr_of_parts.items():
        found = parameters_of(model, part, "optimizer.lr_of_parts")
        frozen = frozen - found if rate else frozen | found
    return frozen


def _load_weights(config: ModelConfig, key: str, **options: Any) -> Any:
    auto_class = find_architecture(config.path, key).auto_class
    folder, name = Path(config.path), f"{key} '{config.path}'"
    if any(folder.glob("pytorch_model*.bin*")) and not any(folder.glob("*.safetensors*")):
        raise ValueError(
            f"{name} has only pickled weights (pytorch_model.bin), which could run code; save them "
            "as safetensors: model.save_pretrained(...) of transformers does"
        )
    if not options:
        refuse_quantized(config, key)
    model, report = from_pretrained(
        auto_class,
        config.path,
        config.trust_remote_code,
        key,
        dtype=getattr(torch, config.dtype),
        use_safetensors=True,
        output_loading_info=True,
        **options,
    )
    # transformers would continue with random numbers in their place.
    if missing := sorted(report["missing_keys"]):
        raise ValueError(
            f"{name}: its weights have no tensor '{missing[0]}' ({len(missing)} are missing); "
            "download or copy the model again"
        )
    switch_off_dropout(model)
    keep_layout(model)  # before any forward pass
    with read_files(config.path, key, "config.json or weights"), torch.no_grad():
        model(input_ids=text_ids(model), use_cache=False)
    if not architecture_of(model).shares_prompts:
        check_head(model, name)
        family = cast(
            Examples, load_family(config.path, trust_remote_code=config.trust_remote_code)
        )
        settle(model, family, config.sharing, name)
    elif config.sharing != "auto" and key == "model.path":
        raise ValueError(
            f"model.sharing={config.sharing}: {name} is of a family that always shares prompts; "
            "leave model.sharing out"
        )
    return model


_LARGE = 1000.0
"""A logit that a cap changes."""


@torch.no_grad()
def check_head(model: Any, name: str) -> None:
    """Check that the logits are those of the output embedding, as all forwards assume."""
    base = unwrapped(model)
    embedding = base.get_input_embeddings()
    first = embedding.num_embeddings // 3
    ids = torch.arange(first, first + 4, device=embedding.weight.device)[None]
    states = getattr(body_of(base)(input_ids=ids, use_cache=False), "last_hidden_state", None)
    if states is None:
        raise ValueError(
            f"{name}: a {type(base).__name__} gives no hidden states, of which log-probs are "
            "computed; such a model needs a family of its own (docs/models.md)"
        )
    head = base.get_output_embeddings()
    # A cap changes large logits alone, which a small or new model does not have.
    factor = _LARGE / head(states).abs().max().clamp(min=1e-6)
    hook = head.register_forward_pre_hook(lambda _, inputs: (factor * inputs[0],))
    try:
        wanted = base(input_ids=ids, use_cache=False).logits
    finally:
        hook.remove()
    if not torch.allclose(head(factor * states), wanted, rtol=1e-3, atol=1e-3 * _LARGE):
        raise ValueError(
            f"{name}: its logits are not those of its output embedding (they are scaled or "
            "capped); such a model needs a family of its own (docs/models.md)"
        )


def feature_cache(config: Config) -> FeatureCache | None:
    """Kept vision features where the tower is frozen: they never change."""
    return FeatureCache() if config.model.freeze_vision_tower else None


def vision_token_cost(config: Config, model: Any | None = None) -> float:
    """``trainer.vision_token_cost``, or its default: what the shapes of the model say.

    Args:
        model: Where it is loaded; else ``model.path`` is looked at.
    """
    if config.trainer.vision_token_cost is not None:
        return config.trainer.vision_token_cost
    if model is not None:
        return architecture_of(model).shape(unwrapped(model).config).vision_token_cost
    path = config.model.path
    shapes = from_pretrained(AutoConfig, path, config.model.trust_remote_code)
    return find_architecture(path).shape(shapes).vision_token_cost


def build_packed_model(
    config: Config,
    model: Any,
    inputs: ModelInputs,
    sampling: SamplingConfig | None = None,
    features: FeatureCache | None = None,
    process_group: ProcessGroup | None = None,
) -> PackedModel:
    """``model`` with packed forwards that need no more memory than the configuration allows.

    Args:
        sampling: How the completions are sampled; None: the model's own distribution counts.

    Raises:
        ValueError: Ranks are to share its sequences, and cannot.
    """
    if config.resources.context_parallel_size > 1 and not architecture_of(model).shares_prompts:
        check_context(model)
    if not architecture_of(model).shares_prompts:
        features = None
    return PackedModel(
        model,
        inputs,
        Distribution.of(sampling or SamplingConfig(), inputs.family.forbidden_ids),
        config.trainer.max_tokens_per_gpu,
        vision_token_cost(config, model),
        features,
        process_group or SingleProcess(),
    )


def router_use(config: Config, model: Any) -> RouterUse | None:
    """Return the policy's use of routers, which are watched then; None: nothing.

    Raises:
        ValueError: The model has none, or none that can be followed.
    """
    algorithm = config.algorithm
    balances = algorithm.router_aux_loss_coef is not None
    if not (balances or algorithm.compares_experts):
        return None
    key = f"algorithm.router_replay={algorithm.router_replay}"
    if not algorithm.compares_experts:
        key = f"algorithm.router_aux_loss_coef={algorithm.router_aux_loss_coef:g}"
    routers = watch_routers(unwrapped(model), key)
    if balances and routers.loss is None:
        raise ValueError(
            "algorithm.router_aux_loss_coef: transformers has no load-balancing loss for "
            f"{type(unwrapped(model)).__name__}; leave it out"
        )
    return RouterUse(algorithm.compares_experts, algorithm.router_replay == "R3", balances)


def load_scalar_model(
    config: ModelConfig, key: str, load: Callable[[ModelConfig, str], Any] = load_trainable
) -> ScalarModel:
    """The model at ``config.path``; its head is read where there is one, and is zero otherwise.

    Args:
        load: Loads the backbone.

    Raises:
        ValueError: If the path has no model; the message names the configuration's ``key``.
    """
    model = ScalarModel(load(config, key))
    if is_scalar_model(config.path):
        model.head.load_state_dict(load_file(Path(config.path) / HEAD_FILE))
    return model


class LoadModel(Protocol):
    """Loads a model."""

    def __call__(
        self,
        config: ModelConfig,
        trains: bool,
        key: str,
        head: bool = False,
        offload: bool = False,
        lr_of_parts: Mapping[str, float] = NO_RATES,
    ) -> Any:
        """
        Args:
            trains: It is to be trained; else it stays as it is.
            key: The configuration's, for errors.
            head: Whether the model has a scalar head: a ``ScalarModel``.
            offload: Shards stay in main memory. A whole model is moved by who uses it.
            lr_of_parts: Rates of the ``optimizer`` section; parts of rate 0 are frozen.
        """
        ...


def load_here(
    config: ModelConfig,
    trains: bool,
    key: str,
    head: bool = False,
    offload: bool = False,
    lr_of_parts: Mapping[str, float] = NO_RATES,
) -> Any:
    """Load the whole model in this process."""
    load = partial(load_trainable, lr_of_parts=lr_of_parts)
    model = load_scalar_model(config, key, load) if head else load(config, key)
    return model if trains else model.requires_grad_(False).eval()
