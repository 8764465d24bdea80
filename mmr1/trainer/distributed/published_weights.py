"""Weights in Ray's object store: a rank writes them, engines read them, the driver passes a handle.

Each node that reads them gets one copy, however many engines it has. They stay as they were while
the ranks learn, so a replaced engine can be given them again.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

CHUNK_BYTES = 256 * 2**20  # of one object: what a rank holds of other ranks' shards at a time


@dataclass(frozen=True, eq=False)
class PublishedWeights(Mapping[str, torch.Tensor]):
    """Named tensors in the object store; the memory is shared, and only to be read.

    Attributes:
        chunks: References to objects with the bytes of some tensors by name.
        places: Chunk, dtype and shape of each tensor, by name.
    """

    chunks: tuple[Any, ...]
    places: dict[str, tuple[int, torch.dtype, tuple[int, ...]]]

    def __getitem__(self, name: str) -> torch.Tensor:
        import ray

        chunk, dtype, shape = self.places[name]
        return _as_tensor(ray.get(self.chunks[chunk])[name], dtype, shape)

    def __iter__(self) -> Iterator[str]:
        return iter(self.places)

    def __len__(self) -> int:
        return len(self.places)


def publish(
    weights: Mapping[str, torch.Tensor], chunk_bytes: int = CHUNK_BYTES
) -> PublishedWeights:
    """Write weights into the object store of this node, a chunk at a time.

    Raises:
        ValueError: The store has no room.
    """
    import ray

    chunks: list[Any] = []
    places: dict[str, tuple[int, torch.dtype, tuple[int, ...]]] = {}
    waiting: dict[str, np.ndarray] = {}
    try:
        for name, weight in weights.items():
            places[name] = (len(chunks), weight.dtype, tuple(weight.shape))
            waiting[name] = _as_bytes(weight)
            if sum(array.nbytes for array in waiting.values()) >= chunk_bytes:
                chunks.append(ray.put(waiting))
                waiting = {}
        if waiting:
            chunks.append(ray.put(waiting))
    except (ray.exceptions.ObjectStoreFullError, ray.exceptions.OutOfDiskError) as error:
        raise ValueError(
            f"Ray's object store has no room for the weights ({error}); start Ray with a larger "
            "--object-store-memory (twice the weights), and in a container with --shm-size"
        ) from error
    return PublishedWeights(tuple(chunks), places)


def _as_bytes(tensor: torch.Tensor) -> np.ndarray:
    """numpy has no bfloat16."""
    return tensor.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy()


def _as_tensor(array: np.ndarray, dtype: torch.dtype, shape: tuple[int, ...]) -> torch.Tensor:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "The given NumPy array is not writable")
        return torch.from_numpy(array).view(dtype).view(shape)
