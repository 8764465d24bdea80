"""Low-rank adapters (LoRA, arXiv 2106.09685) on the policy, and its weights without them.

Only the adapters are trained. Outside the trainer nobody sees them: engines and checkpoints get
``W + scaling * B A`` under the names of the plain transformers model.

peft loads bitsandbytes and torch's compiler, so it is imported where adapters are.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from copy import copy
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from safetensors import safe_open
from safetensors.torch import load_file
from torch.distributed.tensor import DTensor

from mmr1.config import LoraConfig, NewLoraConfig, StoredLoraConfig
from mmr1.trainer.models.parts import outside_language_model
from mmr1.trainer.models.quantization import (
    dequantized,
    is_constant,
    quantized_weights,
)
from mmr1.vision.families.loading import unwrapped
from mmr1.vision.families.model_path import ADAPTER_SETTINGS, read_files, read_settings

if TYPE_CHECKING:
    import peft

ADAPTER_FOLDER = "adapter"
WEIGHTS = "adapter_model.safetensors"
ADAPTER = "default"

MERGING = {
    *("r", "lora_alpha", "lora_dropout", "use_rslora", "fan_in_fan_out", "init_lora_weights"),
    *("target_modules", "exclude_modules", "layers_to_transform", "layers_pattern"),
    *("rank_pattern", "alpha_pattern"),
    *("peft_type", "task_type", "base_model_name_or_path", "revision", "inference_mode"),
    *("auto_mapping", "peft_version"),
}
"""Fields of peft's settings with which ``W + scaling * B A`` is the adapted weight."""

MERGE_TOLERANCE = {torch.float32: 1e-3}
"""Largest mean log-prob difference between merged and adapted weights, in nats."""
HALF_TOLERANCE = 0.1


def add_adapters(model: Any, config: LoraConfig, freeze_vision_tower: bool) -> Any:
    """Return a peft model around ``model``: its weights frozen, adapters on its linear layers.

    Adapters are new, or those of ``model.lora.path``; of a model on torch's ``meta`` device the
    shapes alone. They have the data type of the model, in which peft then multiplies: in float32,
    peft's own choice, they would take more of a GPU's time than the update without adapters. The
    optimizer keeps them in float32.

    Raises:
        ValueError: ``model.lora.target_modules`` names no layer of the model, or something that is
            not a linear layer; or the adapters of ``model.lora.path`` do not fit it.
    """
    import peft

    dtype = model.dtype
    if isinstance(config, StoredLoraConfig):
        path, dropout = config.path, config.dropout
        return _in_dtype(_with_stored_adapters(model, path, dropout, freeze_vision_tower), dtype)
    assert isinstance(config, NewLoraConfig)
    targets = config.target_modules
    settings = peft.LoraConfig(
        r=config.rank,
        lora_alpha=config.alpha,
        lora_dropout=config.dropout,
        target_modules=targets if isinstance(targets, str) else list(targets),
        exclude_modules=_frozen_layers(model) if freeze_vision_tower else None,
    )
    kinds, others = _last_names(model)
    try:
        return _in_dtype(peft.get_peft_model(model, settings), dtype)
    except ValueError as error:
        # peft makes the last part of each layer's name of "all-linear".
        wanted = kinds if isinstance(targets, str) else {*targets}
        ambiguous = sorted(wanted & others.keys())
        fault = (
            f"'{ambiguous[0]}', as a linear layer is called, is also the name of "
            f"{others[ambiguous[0]]}; name the layers to adapt without it"
            if ambiguous
            else "finds no linear layer"
            f"{' outside the frozen vision tower' if freeze_vision_tower else ''}"
        )
        raise ValueError(
            f"model.lora.target_modules={targets!r}: {fault}; the model's are called "
            f"{', '.join(sorted(kinds - {'lm_head', *ambiguous}))}"
        ) from error


def _in_dtype(adapted: Any, dtype: torch.dtype) -> Any:
    """Give the adapters this data type."""
    for parameter in adapted.parameters():
        if parameter.requires_grad:
            parameter.data = parameter.data.to(dtype)
    return adapted


def _last_names(model: Any) -> tuple[set[str], dict[str, str]]:
    """The last parts of the names of linear layers; and of other modules, with a whole name."""
    kinds: set[str] = set()
    others: dict[str, str] = {}
    for name, module in model.named_modules():
        last = name.rpartition(".")[2]
        if _is_linear(module):
            kinds.add(last)
        else:
            others.setdefault(last, name)
    return kinds, others


def _with_stored_adapters(model: Any, path: str, dropout: float, freeze_vision_tower: bool) -> Any:
    import peft

    settings = _stored_settings(Path(path))
    settings.lora_dropout, settings.inference_mode = dropout, False
    if freeze_vision_tower and settings.exclude_modules is None:
        settings.exclude_modules = _frozen_layers(model)
    on_meta = next(model.parameters()).is_meta
    with read_files(path, "model.lora.path", f"{ADAPTER_SETTINGS} or {WEIGHTS}"):
        adapted = peft.get_peft_model(model, settings)
        expected = {n: t.shape for n, t in peft.get_peft_model_state_dict(adapted).items()}
        with safe_open(Path(path) / WEIGHTS, "pt") as file:
            stored = {n: torch.Size(file.get_slice(n).get_shape()) for n in file.keys()}  # noqa: SIM118
    if stored != expected:
        wrong = sorted(name for name, _ in stored.items() ^ expected.items())
        raise ValueError(
            f"model.lora.path '{path}' does not fit the model: {len(wrong)} weights differ in name "
            f"or shape, such as {wrong[0]}; name adapters of model.path, and set "
            "model.freeze_vision_tower as they were trained"
        )
    if not on_meta:
        peft.set_peft_model_state_dict(adapted, load_file(Path(path) / WEIGHTS))
    return adapted


def _stored_settings(folder: Path) -> peft.LoraConfig:
    """The settings of stored adapters, if this package can train and merge them."""
    import peft

    if not (folder / ADAPTER_SETTINGS).is_file() or not (folder / WEIGHTS).is_file():
        raise ValueError(
            f"model.lora.path '{folder}' has no adapters; name a folder with adapter_config.json "
            f"and {WEIGHTS}, such as RUN/checkpoints/step_000100/{ADAPTER_FOLDER}"
        )
    owner = f"model.lora.path '{folder}'"
    written = read_settings(folder / ADAPTER_SETTINGS, owner)
    if written.get("peft_type") != "LORA":
        raise ValueError(f"{owner} has {written.get('peft_type')} adapters, not LoRA")
    plain = peft.LoraConfig().to_dict()
    used = sorted(
        name
        for name, value in written.items()
        if value and name not in MERGING and value != plain.get(name)
    )
    if written.get("init_lora_weights") not in (None, True, False, "gaussian", "orthogonal"):
        used.append(f"init_lora_weights={written['init_lora_weights']}")
    if used:
        raise ValueError(
            f"{owner} has {', '.join(used)}, which plain LoRA does not have; merge it into the "
            "model with peft, and name that in model.path"
        )
    with read_files(str(folder), "model.lora.path", ADAPTER_SETTINGS):
        settings: peft.LoraConfig = peft.LoraConfig.from_pretrained(str(folder))
    return settings


def text_ids(model: Any) -> torch.Tensor:
    """Return a few tokens ``[1, 4]`` that every model can read."""
    rows = unwrapped(model).get_input_embeddings().weight.shape[0]
    device = next(model.parameters()).device
    return torch.arange(4, device=device)[None] + rows // 3


@torch.no_grad()
def check_merging(model: Any) -> None:
    """Compare the model with its adapters to the model with their weights merged.

    The adapters are changed for it, so that new ones, which are zero, are compared too.

    Raises:
        ValueError: If the log-probs of a short text differ, or no log-prob is computed with them.
    """
    layers = MergedWeights.of(model).adapted
    base = model.get_base_model()
    whole = {id(base.get_output_embeddings()), id(base.get_input_embeddings())}
    if names := [name for name, layer in layers.items() if id(layer) in whole]:
        raise ValueError(
            f"model.lora: {names[0].removesuffix('.weight')} has adapters, and log-probs are "
            "computed from its plain weight; name adapters without it"
        )
    ids, kept = text_ids(model), adapter_weights(model)
    training = model.training
    model.eval()
    noise = torch.Generator().manual_seed(0)
    try:
        for name, parameter in model.named_parameters():
            if ".lora_B." in name:
                parameter.add_(0.02 * torch.randn(parameter.shape, generator=noise).to(parameter))
        adapted = model(input_ids=ids, use_cache=False).logits.float().log_softmax(-1)
        hooks = [layer.register_forward_hook(_add_delta) for layer in layers.values()]
        try:
            with model.disable_adapter():
                merged = model(input_ids=ids, use_cache=False).logits.float().log_softmax(-1)
        finally:
            for hook in hooks:
                hook.remove()
    finally:
        set_adapter_weights(model, kept)
        model.train(training)
    gap = float((adapted - merged).abs().mean())
    tolerance = MERGE_TOLERANCE.get(base.dtype, HALF_TOLERANCE)
    if not gap <= tolerance:  # also false for NaN
        raise ValueError(
            f"model.lora: with merged weights, which engines and checkpoints get, log-probs are "
            f"{gap:.2g} nats from those with the adapters (allowed: {tolerance:g}); merge them "
            "into the model with peft, and name that in model.path"
        )


def _add_delta(layer: Any, inputs: tuple[Any, ...], output: torch.Tensor) -> torch.Tensor:
    """Add what merging adds to a layer's weight, in a forward without adapters."""
    delta = layer.get_delta_weight(ADAPTER)
    if isinstance(layer.get_base_layer(), torch.nn.Linear):
        return output + torch.nn.functional.linear(inputs[0], delta.to(inputs[0].dtype))
    plain = copy(layer.get_base_layer())
    plain.weight, plain.bias = torch.nn.Parameter(delta.to(output.dtype)), None
    return output + plain(inputs[0])


def _frozen_layers(model: Any) -> list[str]:
    """Names of the linear layers of the vision tower and of its projector."""
    frozen = outside_language_model(model)
    return [n for n, m in model.named_modules() if _is_linear(m) and f"{n}.weight" in frozen]


def has_adapters(model: Any) -> bool:
    """True for a peft model."""
    return hasattr(model, "get_base_model")


def adapter_state(model: Any) -> dict[str, torch.Tensor]:
    """The adapters' own tensors, as peft saves them; empty for a plain model."""
    if not has_adapters(model):
        return {}
    import peft

    return peft.get_peft_model_state_dict(model)


def adapter_weights(model: Any) -> dict[str, torch.Tensor]:
    """A copy of the adapters, which are all that is trained."""
    return {n: p.detach().clone() for n, p in model.named_parameters() if p.requires_grad}


@torch.no_grad()
def set_adapter_weights(model: Any, weights: Mapping[str, torch.Tensor]) -> None:
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            parameter.copy_(weights[name])


@dataclass(frozen=True)
class MergedWeights(Mapping[str, torch.Tensor]):
    """Merges a weight when it is asked for: a second copy of a large model may not fit.

    Attributes:
        plain: Weights by plain name, without adapters.
        adapted: The peft layers whose weight has adapters, by that weight's plain name.
        quantized: The weights that are in 4 bits, likewise.
    """

    plain: dict[str, torch.Tensor]
    adapted: dict[str, Any]
    quantized: Mapping[str, torch.Tensor]

    @staticmethod
    def of(model: Any) -> MergedWeights:
        base = model.get_base_model()
        plain = {
            name.replace(".base_layer.", "."): tensor
            for name, tensor in base.state_dict().items()
            if ".lora_" not in name and not is_constant(name)
        }
        quantized = {
            name.replace(".base_layer.", "."): weight
            for name, weight in quantized_weights(base).items()
        }
        layers = {f"{n}.weight": m for n, m in base.named_modules() if hasattr(m, "lora_A")}
        return MergedWeights(plain, layers, quantized)

    def stored(self, name: str) -> torch.Tensor:
        """The parts of the weight that are not adapters."""
        return self.quantized.get(name, self.plain[name])

    def __getitem__(self, name: str) -> torch.Tensor:
        weight = self.plain[name]
        if name in self.quantized:
            weight = dequantized(self.quantized[name])
        if name not in self.adapted:
            return weight
        delta = self.adapted[name].get_delta_weight(ADAPTER).detach()
        if isinstance(delta, DTensor) and not isinstance(weight, DTensor):
            delta = delta.full_tensor()  # each rank has all weights in 4 bits
        return (weight.to(delta.dtype) + delta).to(weight.dtype)

    def __iter__(self) -> Iterator[str]:
        return iter(self.plain)

    def __len__(self) -> int:
        return len(self.plain)


def _is_linear(module: torch.nn.Module) -> bool:
    return isinstance(module, torch.nn.Linear)
