"""Move what ranks need only for learning to main memory while engines sample.

A tensor leaves with its storage, which is emptied and filled again. So the tensor stays the same,
and so do the views of it that FSDP2 and the optimizer hold.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import chain
from typing import Any

import torch

from mmr1.trainer.models.optimizer import Optimizer
from mmr1.trainer.models.weights import local


class MainMemory:
    """Moves storages of a device to main memory, and back.

    Its own copies are pinned where the device is a GPU, and stay for the next time.
    """

    def __init__(self) -> None:
        self._device = "cuda" if torch.cuda.is_available() else "cpu"
        self._copies: dict[int, torch.UntypedStorage] = {}
        self._away: list[tuple[torch.UntypedStorage, torch.UntypedStorage]] = []

    def take(self, tensors: Iterable[torch.Tensor]) -> None:
        """Empty the storages of these tensors, except for those that are in main memory anyway: on
        another device, or the mapping of a file.
        """
        taken = []
        for key, storage in storages(tensors).items():
            if storage.device.type == self._device and storage.nbytes() and storage.resizable():
                copy = self._copy_for(key, storage.nbytes())
                copy.copy_(storage, non_blocking=True)
                taken.append((storage, copy))
        self._finish()
        for storage, _ in taken:
            storage.resize_(0)
        self._away += taken

    def give_back(self) -> None:
        """Fill all storages again."""
        for storage, copy in self._away:
            storage.resize_(copy.nbytes())
            storage.copy_(copy, non_blocking=True)
        self._finish()
        self._away = []

    def _copy_for(self, key: int, size: int) -> torch.UntypedStorage:
        known = self._copies.get(key)
        if known is None or known.nbytes() != size:
            known = torch.UntypedStorage(size)
            self._copies[key] = known.pin_memory() if self._device == "cuda" else known
        return self._copies[key]

    def _finish(self) -> None:
        if self._device == "cuda":
            torch.cuda.synchronize()


def storages(tensors: Iterable[torch.Tensor]) -> dict[int, torch.UntypedStorage]:
    """Each storage once, by a key that stays the same while it is empty."""
    with torch.no_grad():
        found = [local(tensor).untyped_storage() for tensor in tensors]
    return {storage._cdata: storage for storage in found}


class CpuOffload:
    """Moves weights and optimizer states to main memory for engines, and back for the ranks.

    Args:
        models: The one whose weights are sent to the engines is the first.
    """

    def __init__(self, models: Sequence[Any], optimizers: Sequence[Optimizer]) -> None:
        self._models = models
        self._optimizers = optimizers
        self._memory = MainMemory()

    def before_sending(self) -> None:
        """Move moments, float32 weights, references and critics to main memory."""
        sent = storages(_of_model(self._models[0]))
        of_optimizers = (optimizer.tensors().values() for optimizer in self._optimizers)
        others = chain(*map(_of_model, self._models[1:]), *of_optimizers)
        self._memory.take(t for t in others if not storages([t]).keys() & sent.keys())

    def after_sending(self) -> None:
        """Move the weights to main memory."""
        self._memory.take(_of_model(self._models[0]))

    def back(self) -> None:
        self._memory.give_back()


def _of_model(model: Any) -> Iterable[torch.Tensor]:
    return chain(model.parameters(), model.buffers())
