"""The weights of a model by the names of the plain transformers model.

Sharded ones are put together, and adapters are merged, when a weight is asked for: a second copy of
a large model may not fit.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping, Set
from dataclasses import dataclass
from typing import Any
from weakref import ReferenceType, ref

import torch
from torch.distributed.tensor import DTensor, distribute_tensor

from mmr1.trainer.models.lora import MergedWeights, adapter_state
from mmr1.vision.families.loading import unwrapped


def model_weights(model: Any, left_out: Set[str] = frozenset()) -> Mapping[str, torch.Tensor]:
    """Weights by the names of the plain transformers model: adapters merged, shards joined.

    Not copies, but for the merged ones and those put together, which are made when asked for: all
    ranks must ask for the same ones in the same order.

    Args:
        left_out: Names of weights that are not wanted.
    """
    base = unwrapped(model)
    weights = model.state_dict() if base is model else MergedWeights.of(model)
    if left_out:
        weights = _Selected(weights, tuple(name for name in weights if name not in left_out))
    sharded = any(isinstance(p, DTensor) for p in model.parameters())
    return WholeWeights(weights, base.config.dtype) if sharded else weights


@dataclass(frozen=True)
class _Selected(Mapping[str, torch.Tensor]):
    """Some of the weights, each computed when asked for."""

    weights: Mapping[str, torch.Tensor]
    names: tuple[str, ...]

    def __getitem__(self, name: str) -> torch.Tensor:
        return self.weights[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.names)

    def __len__(self) -> int:
        return len(self.names)


@dataclass(frozen=True)
class WholeWeights(Mapping[str, torch.Tensor]):
    """Puts a sharded weight together when it is asked for, so that one at a time is whole.

    Attributes:
        shards: The weights by name.
        dtype: Data type that sharded ones are rounded to before they are put together: that of the
            model, where the ranks train it in float32. None: nothing is rounded.
    """

    shards: Mapping[str, torch.Tensor]
    dtype: torch.dtype | None = None

    def __getitem__(self, name: str) -> torch.Tensor:
        tensor = self.shards[name]
        if not isinstance(tensor, DTensor):
            return tensor
        return whole(tensor.to(self.dtype or tensor.dtype))

    def on_first(self, rank: int) -> dict[str, torch.Tensor]:
        """All of them in main memory of rank 0, none on the others; all ranks must call it.

        Tensors that are one (tied weights) stay one.
        """
        kept: dict[str, torch.Tensor] = {}
        owners: dict[int, tuple[str, ReferenceType[torch.Tensor]]] = {}
        for name, shard in self.shards.items():
            storage = local(shard).untyped_storage()._cdata
            first, owner = owners.get(storage, (name, None))
            # The storage of a weight that was made to be read is given out again.
            if owner is None or owner() is None:
                first, owners[storage] = name, (name, ref(shard))
            whole = self[name] if first == name else None
            if rank == 0:
                kept[name] = kept[first] if whole is None else whole.cpu()
        return kept

    def __iter__(self) -> Iterator[str]:
        return iter(self.shards)

    def __len__(self) -> int:
        return len(self.shards)


def whole(tensor: torch.Tensor) -> torch.Tensor:
    """A tensor as it is, or a sharded one put together, which all ranks must call. No gradient."""
    tensor = tensor.detach()
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def local(tensor: torch.Tensor) -> torch.Tensor:
    """This rank's part of a tensor."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def copy_into(own: Mapping[str, torch.Tensor], weights: Mapping[str, torch.Tensor]) -> None:
    """Take over whole weights, each rank its shards of them."""
    with torch.no_grad():
        for name, tensor in own.items():
            if isinstance(tensor, DTensor):
                shards = distribute_tensor(
                    weights[name].to(tensor.device), tensor.device_mesh, tensor.placements
                )
                tensor.copy_(shards)
            else:
                tensor.copy_(weights[name])


def model_adapters(model: Any) -> Mapping[str, torch.Tensor]:
    """The adapters' own tensors, as peft saves them; sharded ones are put together."""
    adapters = adapter_state(model)
    sharded = any(isinstance(tensor, DTensor) for tensor in adapters.values())
    return WholeWeights(adapters) if sharded else adapters


@dataclass(frozen=True)
class Sketch:
    """The shape and type of a weight, known before it is computed.

    Attributes:
        like: Its shape and type, on the ``meta`` device.
        memory: Equal for weights that are one (tied).
    """

    like: torch.Tensor
    memory: Hashable


def sketches(weights: Mapping[str, torch.Tensor]) -> dict[str, Sketch]:
    """The sketch of each weight, without computing one."""
    return {name: _sketch(weights, name) for name in weights}


def _sketch(weights: Mapping[str, torch.Tensor], name: str) -> Sketch:
    shards = weights.shards if isinstance(weights, WholeWeights) else weights
    own = False
    if isinstance(shards, MergedWeights):
        stored, own = shards.stored(name), name in shards.adapted
    else:
        stored = shards[name]
    state = getattr(stored, "quant_state", stored)  # has the shape and type of the weight in 4 bits
    dtype = state.dtype
    if isinstance(weights, WholeWeights) and isinstance(stored, DTensor):
        dtype = weights.dtype or dtype
    like = torch.empty(state.shape, dtype=dtype, device="meta")
    return Sketch(like, name if own else _memory(stored))


def _memory(tensor: torch.Tensor) -> Hashable:
    own = local(tensor)
    return own.untyped_storage()._cdata, own.storage_offset(), tuple(tensor.shape)


def copy_on_first(weights: Mapping[str, torch.Tensor], rank: int) -> Mapping[str, torch.Tensor]:
    """Copies in main memory of rank 0, none on the others; all ranks must call it."""
    if isinstance(weights, WholeWeights):
        weights = weights.on_first(rank)
    return copy_to_cpu(weights)


def copy_to_cpu(tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Copies in main memory; tensors that shared their memory (tied weights) share a copy."""
    tensors = dict(tensors)  # merged weights are made when asked for: all must live at once
    copies: dict[int, torch.Tensor] = {}
    for tensor in tensors.values():
        if tensor.data_ptr() not in copies:
            copies[tensor.data_ptr()] = tensor.detach().to("cpu", copy=True)
    return {name: copies[tensor.data_ptr()] for name, tensor in tensors.items()}
