"""Weights in shared memory, for an engine in another process on the same machine.

Tensors of one dtype lie in one block. Handing them over takes one file descriptor per dtype, where
one per tensor would exceed the usual limit of 1,024 (``ulimit -n``) with a model of 3B parameters.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from math import prod
from pathlib import Path

import torch

SHARED_MEMORY = Path("/dev/shm")


@dataclass(frozen=True, slots=True)
class SharedWeights:
    """Named tensors in shared memory; another process gets the same memory by pickling this.

    Attributes:
        blocks: One flat tensor of each dtype.
        places: Dtype, first element and shape of each tensor, by name.
    """

    blocks: dict[torch.dtype, torch.Tensor]
    places: dict[str, tuple[torch.dtype, int, tuple[int, ...]]]

    def tensors(self) -> dict[str, torch.Tensor]:
        """Views of the blocks, by name."""
        return {
            name: self.blocks[dtype][start : start + prod(shape)].view(shape)
            for name, (dtype, start, shape) in self.places.items()
        }

    def write(self, weights: Mapping[str, torch.Tensor]) -> None:
        """Copy tensors of the same names and shapes into the memory."""
        tensors = self.tensors()
        for name, weight in weights.items():
            tensors[name].copy_(weight.detach())


def share_weights(weights: Mapping[str, torch.Tensor]) -> SharedWeights:
    """Shared memory for these weights, with their values.

    Raises:
        ValueError: If the machine has too little shared memory.
    """
    sizes: dict[torch.dtype, int] = {}
    places = {}
    for name, weight in weights.items():
        start = sizes.get(weight.dtype, 0)
        places[name] = (weight.dtype, start, tuple(weight.shape))
        sizes[weight.dtype] = start + weight.numel()
    _check_room(sum(count * dtype.itemsize for dtype, count in sizes.items()))
    blocks = {
        dtype: torch.empty(count, dtype=dtype).share_memory_() for dtype, count in sizes.items()
    }
    shared = SharedWeights(blocks, places)
    shared.write(weights)
    return shared


@dataclass(frozen=True, slots=True)
class MappedWeights:
    """Named tensors of one dtype in a file in shared memory; any process on the machine may map it.

    Attributes:
        places: First element and shape of each tensor, by name.
    """

    path: str
    dtype: torch.dtype
    places: dict[str, tuple[int, tuple[int, ...]]]

    def tensors(self) -> dict[str, torch.Tensor]:
        """Views of the file, by name; they outlive its name."""
        count = sum(prod(shape) for _, shape in self.places.values())
        block = torch.from_file(self.path, shared=True, size=count, dtype=self.dtype)
        return {
            name: block[start : start + prod(shape)].view(shape)
            for name, (start, shape) in self.places.items()
        }


@contextmanager
def mapped_weights(
    weights: Mapping[str, torch.Tensor], dtype: torch.dtype
) -> Iterator[MappedWeights]:
    """The weights in a file that is removed after the block.

    Raises:
        ValueError: If the machine has too little shared memory.
    """
    places, count = {}, 0
    for name, weight in weights.items():
        places[name] = (count, tuple(weight.shape))
        count += weight.numel()
    _check_room(count * dtype.itemsize)
    folder = SHARED_MEMORY if SHARED_MEMORY.is_dir() else None
    with tempfile.NamedTemporaryFile(prefix="mmr1-weights-", dir=folder) as file:
        file.truncate(count * dtype.itemsize)
        mapped = MappedWeights(file.name, dtype, places)
        tensors = mapped.tensors()
        for name, weight in weights.items():
            tensors[name].copy_(weight.detach())
        yield mapped


def _check_room(size: int) -> None:
    """Refuse more than the shared memory can hold: writing it would end the process with SIGBUS."""
    if not SHARED_MEMORY.is_dir():
        return
    free = shutil.disk_usage(SHARED_MEMORY).free
    if size > free:
        raise ValueError(
            f"the weights for the rollout engine take {size / 2**30:.1f} GiB of shared memory and "
            f"{SHARED_MEMORY} has {free / 2**30:.1f} GiB free; give it more (in a container "
            "--shm-size or --ipc=host)"
        )
