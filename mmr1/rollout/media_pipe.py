"""Messages between two processes, with prepared media in shared memory beside the pipe.

The media of a message lie in one piece of memory without a name: nothing of it can be left in
``/dev/shm``, whose size does not limit it, and the system frees it when neither process maps it any
more. Its descriptor goes through the pipe, behind the message. Linux alone has such memory.
"""

from __future__ import annotations

import io
import os
import pickle
from dataclasses import fields
from math import prod
from multiprocessing.connection import Connection
from multiprocessing.reduction import ForkingPickler, recv_handle, send_handle
from typing import Any

import torch

from mmr1.vision.prepare import Medium

_ALIGNED = 64
_SIZE_BYTES = 8  # in front of each message: those of the memory that follows it, or 0


def send(pipe: Connection, message: Any, dtype: torch.dtype | None = None) -> None:
    """Send a message; :func:`receive` reads it.

    Args:
        message: Media anywhere in it, those of one digest once, are written into shared memory.
        dtype: Data type in which their float32 pixels are written; default: as they are.

    Raises:
        OSError: The other end is closed.
    """
    data = io.BytesIO(bytes(_SIZE_BYTES))
    data.seek(_SIZE_BYTES)
    pickler = _Pickler(data, dtype)
    pickler.dump(message)
    if not pickler.media:
        pipe.send_bytes(data.getbuffer())
        return
    data.getbuffer()[:_SIZE_BYTES] = pickler.size.to_bytes(_SIZE_BYTES)
    descriptor = os.memfd_create("mmr1-media")
    try:
        os.ftruncate(descriptor, pickler.size)
        memory = _mapped(descriptor, pickler.size)
        for start, patches, kind in pickler.media.values():
            _view(memory, start, patches.shape, kind).copy_(patches)
        pipe.send_bytes(data.getbuffer())
        send_handle(pipe, descriptor, None)
    finally:
        os.close(descriptor)


def receive(pipe: Connection) -> Any:
    """The next message. Its media are views of the shared memory, which lives as long as they do.

    Raises:
        EOFError: The other end is closed.
    """
    data = pipe.recv_bytes()
    size = int.from_bytes(data[:_SIZE_BYTES])
    memory = None
    if size:
        descriptor = recv_handle(pipe)
        try:
            memory = _mapped(descriptor, size)
        finally:
            os.close(descriptor)
    return _Unpickler(io.BytesIO(memoryview(data)[_SIZE_BYTES:]), memory).load()


class _Pickler(ForkingPickler):
    """Writes the places of media instead of their patches.

    Attributes:
        media: First byte, patches and the type to write them in, by digest.
        size: Bytes of all.
    """

    def __init__(self, file: io.BytesIO, dtype: torch.dtype | None) -> None:
        super().__init__(file, pickle.HIGHEST_PROTOCOL)
        self.media: dict[str, tuple[int, torch.Tensor, torch.dtype]] = {}
        self.size = 0
        self._dtype = dtype

    def persistent_id(self, value: Any) -> Any:
        if not isinstance(value, Medium):
            return None
        patches = value.patches
        if value.digest not in self.media:
            kind = self._dtype if patches.dtype == torch.float32 else None
            kind = kind or patches.dtype
            self.media[value.digest] = (self.size, patches, kind)
            self.size += (patches.numel() * kind.itemsize // _ALIGNED + 1) * _ALIGNED
        start, _, kind = self.media[value.digest]
        others = {f.name: getattr(value, f.name) for f in fields(value) if f.name != "stored"}
        return others, start, tuple(patches.shape), kind


class _Unpickler(pickle.Unpickler):
    def __init__(self, file: io.BytesIO, memory: torch.Tensor | None) -> None:
        super().__init__(file)
        self._memory = memory

    def persistent_load(self, value: Any) -> Medium:
        others, start, shape, kind = value
        assert self._memory is not None
        return Medium(stored=_view(self._memory, start, shape, kind), **others)


def _mapped(descriptor: int, size: int) -> torch.Tensor:
    """The memory as ``[size]`` bytes; it needs no descriptor any more."""
    path = f"/proc/self/fd/{descriptor}"
    return torch.from_file(path, shared=True, size=size, dtype=torch.uint8)


def _view(
    memory: torch.Tensor, start: int, shape: tuple[int, ...], kind: torch.dtype
) -> torch.Tensor:
    return memory[start : start + prod(shape) * kind.itemsize].view(kind).view(shape)
