"""Write tensors of a checkpoint piece by piece, without a copy of them in main memory.

safetensors' own writer and torch's make a file in memory first.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping
from math import prod
from pathlib import Path
from types import TracebackType
from typing import Any

import torch
from torch.distributed.checkpoint import HuggingFaceStorageWriter
from torch.distributed.checkpoint.planner import SavePlan, SavePlanner, WriteItem
from torch.distributed.checkpoint.storage import WriteResult
from torch.futures import Future

PIECE_BYTES = 64 << 20
"""So much of a tensor is in main memory at once, where it is on a GPU."""

_DTYPES = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.float8_e4m3fn: "F8_E4M3",
    torch.float8_e5m2: "F8_E5M2",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.int16: "I16",
    torch.int8: "I8",
    torch.uint8: "U8",
    torch.bool: "BOOL",
}
"""What safetensors calls them; of those that optimizers and models hold."""


class TensorFile:
    """A safetensors file whose tensors are written in any order; a context.

    Args:
        likes: The shape and type of each tensor, on the ``meta`` device.
    """

    def __init__(
        self, path: Path, likes: Mapping[str, torch.Tensor], metadata: Mapping[str, str]
    ) -> None:
        entries: dict[str, Any] = {"__metadata__": dict(metadata)}
        end = 0
        # Those of large elements first: each begins at a multiple of its element's size.
        for name, like in sorted(likes.items(), key=lambda item: -item[1].dtype.itemsize):
            begin, end = end, end + prod(like.shape) * like.dtype.itemsize
            entries[name] = {
                "dtype": _DTYPES[like.dtype],
                "shape": list(like.shape),
                "data_offsets": [begin, end],
            }
        text = json.dumps(entries, separators=(",", ":")).encode()
        text += b" " * (-len(text) % 8)
        self._entries, self._begin = entries, 8 + len(text)
        self._file = path.open("wb")
        self._file.write(struct.pack("<Q", len(text)) + text)

    def write(self, name: str, tensor: torch.Tensor) -> None:
        """Write a whole tensor to its place."""
        entry = self._entries[name]
        assert (_DTYPES[tensor.dtype], list(tensor.shape)) == (entry["dtype"], entry["shape"]), name
        self._file.seek(self._begin + entry["data_offsets"][0])
        flat = tensor.detach().contiguous().reshape(-1).view(torch.uint8)
        for piece in flat.split(PIECE_BYTES):
            self._file.write(piece.cpu().numpy().data)

    def __enter__(self) -> TensorFile:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._file.close()


class StreamingWriter(HuggingFaceStorageWriter):
    """torch's writer of one safetensors file a rank, with the same names and contents."""

    def __init__(self, folder: Path) -> None:
        super().__init__(str(folder), save_distributed=True)
        self._folder = folder

    def write_data(self, plan: SavePlan, planner: SavePlanner) -> Future[list[WriteResult]]:
        """Write this rank's tensors. The results are empty: such files have no index."""
        if plan.items:
            name = f"shard-{plan.storage_data['shard_index']:05}-model-00001-of-00001.safetensors"
            likes = {item.index.fqn: _like(item) for item in plan.items}
            with TensorFile(self._folder / name, likes, _metadata(plan)) as file:
                for item in plan.items:
                    tensor = planner.resolve_data(item)
                    assert isinstance(tensor, torch.Tensor)
                    file.write(item.index.fqn, tensor)
        done: Future[list[WriteResult]] = Future()
        done.set_result([])
        return done


def _like(item: WriteItem) -> torch.Tensor:
    assert item.tensor_data is not None, "optimizers and models hold tensors"
    dtype = item.tensor_data.properties.dtype
    return torch.empty(item.tensor_data.chunk.sizes, dtype=dtype, device="meta")


def _metadata(plan: SavePlan) -> dict[str, str]:
    """The offsets by which torch's reader finds shards."""
    places = {}
    for item in plan.items:
        assert item.tensor_data is not None
        places[item.index.fqn] = {"saved_offsets": list(item.tensor_data.chunk.offsets)}
    return {"DCP_SHARDING_INFO": json.dumps(places), "DCP_VERSION": "1.0", "format": "pt"}
