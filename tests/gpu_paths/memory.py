"""Bytes on the stand-in device: of living storages, rounded up as CUDA's allocator does."""

from __future__ import annotations

import gc
import weakref
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.distributed.tensor import DTensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

GRANULE = 512


class Memory(TorchDispatchMode):
    """Counts what operators inside the block make, on fake tensors.

    FSDP frees gathered weights by shrinking their storage, so storages are measured again when
    they are resized.

    Attributes:
        peak: The most since ``restart``.
    """

    def __init__(self) -> None:
        super().__init__()
        self.peak = 0
        self._now = 0
        self._sizes: dict[int, int] = {}
        self._resize = torch.UntypedStorage.resize_

    @property
    def now(self) -> int:
        gc.collect()
        return self._now

    def restart(self) -> None:
        self.peak = self.now

    def __enter__(self):
        memory, resize = self, self._resize

        def resized(storage: torch.UntypedStorage, size: int) -> Any:
            out = resize(storage, size)
            if storage._cdata in memory._sizes:
                memory._set(storage._cdata, size)
            return out

        torch.UntypedStorage.resize_ = resized
        return super().__enter__()

    def __exit__(self, *error: Any) -> None:
        torch.UntypedStorage.resize_ = self._resize
        super().__exit__(*error)

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if DTensor in types:
            return NotImplemented  # it works on its shard, which comes here
        out = func(*args, **(kwargs or {}))
        for tensor in tree_leaves(out):
            if isinstance(tensor, FakeTensor) and tensor.device.type != "cpu":
                self._meet(tensor.untyped_storage())
        return out

    def _meet(self, storage: torch.UntypedStorage) -> None:
        key = storage._cdata
        if key not in self._sizes:
            weakref.finalize(storage, self._forget, key)
            self._sizes[key] = 0
            self._set(key, storage.nbytes())

    def _set(self, key: int, size: int) -> None:
        rounded = -(-size // GRANULE) * GRANULE
        self._now += rounded - self._sizes[key]
        self._sizes[key] = rounded
        self.peak = max(self.peak, self._now)

    def _forget(self, key: int) -> None:
        self._now -= self._sizes.pop(key)
