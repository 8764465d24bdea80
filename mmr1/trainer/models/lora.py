"""Low-rank adapters (LoRA, arXiv 2106.09685) on the policy, and its weights without them.

Only the adapters are trained. Outside the trainer nobody sees them: engines and checkpoints get
``W + scaling * B A`` under the names of the plain transformers model.

peft loads bitsandbytes and torch's compiler, so it is imported where adapters are.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file
from torch.distributed.tensor import DTensor

from mmr1.config import LoraConfig, NewLoraConfig, StoredLoraConfig
from mmr1.trainer.models.parts import outside_language_model
from mmr1.trainer.models.quantization import (
    dequantized,
    is_constant,
    quantized_weights,
)

if TYPE_CHECKING:
    import peft

ADAPTER_FOLDER = "adapter"
WEIGHTS = "adapter_model.safetensors"
ADAPTER = "default"


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
    try:
        adapted = peft.get_peft_model(model, settings)
        expected = {n: t.shape for n, t in peft.get_peft_model_state_dict(adapted).items()}
        with safe_open(Path(path) / WEIGHTS, "pt") as file:
            stored = {n: torch.Size(file.get_slice(n).get_shape()) for n in file.keys()}  # noqa: SIM118
    except (OSError, ValueError, SafetensorError) as error:
        raise ValueError(f"model.lora.path '{path}' cannot be used: {error}") from error
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

    if not (folder / "adapter_config.json").is_file() or not (folder / WEIGHTS).is_file():
        raise ValueError(
            f"model.lora.path '{folder}' has no adapters; name a folder with adapter_config.json "
            f"and {WEIGHTS}, such as RUN/checkpoints/step_000100/{ADAPTER_FOLDER}"
        )
    settings = peft.PeftConfig.from_pretrained(str(folder))
    if not isinstance(settings, peft.LoraConfig):
        raise ValueError(f"model.lora.path '{folder}' has {settings.peft_type} adapters, not LoRA")
    unsupported = {
        "use_dora": settings.use_dora,
        "bias": settings.bias != "none",
        "modules_to_save": settings.modules_to_save,
    }
    if used := [name for name, value in unsupported.items() if value]:
        raise ValueError(
            f"model.lora.path '{folder}' has {', '.join(used)}, which plain LoRA does not have; "
            "merge it into the model with peft, and name that in model.path"
        )
    return settings


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
