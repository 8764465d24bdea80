"""LoRA adapters for vLLM, which adds them to the weights that it has read."""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from mmr1.config import LoraConfig, NewLoraConfig, StoredLoraConfig

_RANKS = (1, 8, 16, 32, 64, 128, 256, 320, 512)  # those that vLLM has room for
_OTHER_SCALES = ("use_rslora", "rank_pattern", "alpha_pattern")
_PREFIX = "base_model.model."
_SETTINGS, _TENSORS = "adapter_config.json", "adapter_model.safetensors"


@dataclass(frozen=True, slots=True)
class AdapterShape:
    """Rank and scale of an engine's adapters."""

    rank: int
    alpha: float

    @property
    def room(self) -> int:
        """The smallest rank that vLLM accepts and that is large enough.

        Raises:
            ValueError: If vLLM accepts no rank that is large enough.
        """
        if self.rank > _RANKS[-1]:
            raise ValueError(
                f"adapters of rank {self.rank} and model.lora.merge=false: vLLM has room for "
                f"{_RANKS[-1]}; leave model.lora.merge out"
            )
        return next(rank for rank in _RANKS if rank >= self.rank)


def adapter_shape(lora: LoraConfig | None) -> AdapterShape | None:
    """The shape of the adapters that the engine gets; None if it gets merged weights.

    Raises:
        ValueError: If the adapters have scales that differ from alpha / rank.
    """
    if lora is None or lora.merge:
        return None
    if isinstance(lora, NewLoraConfig):
        return AdapterShape(lora.rank, lora.alpha)
    assert isinstance(lora, StoredLoraConfig)
    stored = json.loads((Path(lora.path) / _SETTINGS).read_text())
    if scaled := [key for key in _OTHER_SCALES if stored.get(key)]:
        raise ValueError(
            f"model.lora.path '{lora.path}' has {', '.join(scaled)}, which the engine does "
            "not know; leave model.lora.merge out"
        )
    return AdapterShape(int(stored["r"]), float(stored["lora_alpha"]))


class EngineAdapters:
    """The policy's adapters in a vLLM engine: one set of them at a time.

    vLLM reads adapters from a folder. It is a temporary one, and it is gone once they are read.

    Args:
        names: Names of weights, where vLLM knows them by others than transformers does.

    Attributes:
        request: Goes with every prompt; None before the first adapters.
    """

    def __init__(self, engine: Any, shape: AdapterShape, names: Mapping[str, str]) -> None:
        self._engine, self._shape, self._names = engine, shape, names
        self.request: Any = None

    def load(self, tensors: Mapping[str, torch.Tensor]) -> None:
        """Replace the adapters.

        Args:
            tensors: Tensors by the names that peft saves them under.
        """
        from vllm.lora.request import LoRARequest

        number = 1 if self.request is None else self.request.lora_int_id + 1
        folder = Path(tempfile.mkdtemp(prefix="mmr1-adapters-"))
        try:
            named = {_in_files(name, self._names): tensor for name, tensor in tensors.items()}
            _write(folder, named, self._shape)
            request = LoRARequest(f"policy-{number}", number, str(folder))
            if self.request is not None:
                self._engine.remove_lora(self.request.lora_int_id)
            if not self._engine.add_lora(request):
                raise RuntimeError("vLLM did not take the policy's adapters")
        finally:
            shutil.rmtree(folder)
        self.request = request


def _in_files(name: str, names: Mapping[str, str]) -> str:
    """The name of an adapter's tensor, with that of its layer in files of such models.

    >>> _in_files("base_model.model.a.b.lora_A.weight", {"a.b.weight": "c.d.weight"})
    'base_model.model.c.d.lora_A.weight'
    """
    layer, lora, rest = name.removeprefix(_PREFIX).partition(".lora_")
    known = names.get(f"{layer}.weight", f"{layer}.weight").removesuffix(".weight")
    return f"{_PREFIX}{known}{lora}{rest}"


def _write(folder: Path, tensors: Mapping[str, torch.Tensor], shape: AdapterShape) -> None:
    modules = sorted({name.split(".lora_")[0].rpartition(".")[2] for name in tensors})
    settings = {
        "peft_type": "LORA",
        "r": shape.rank,
        "lora_alpha": shape.alpha,
        "target_modules": modules,
        "bias": "none",
    }
    (folder / _SETTINGS).write_text(json.dumps(settings))
    save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, folder / _TENSORS)
