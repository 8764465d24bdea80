"""Tensors of a checkpoint, written piece by piece: no copy of them is made in main memory.

torch's own writer makes a file of safetensors in memory first, which takes twice its size.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping
from math import prod
from pathlib import Path
from typing import Any, BinaryIO

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
    torch.int64: "I64",
    torch.int32: "I32",
    torch.uint8: "U8",
    torch.bool: "BOOL",
}
"""What safetensors calls them; of those that optimizers and models hold."""


class StreamingWriter(HuggingFaceStorageWriter):
    """torch's writer of one safetensors file a rank, with the same names and contents."""

    def __init__(self, folder: Path) -> None:
        super().__init__(str(folder), save_distributed=True)
        self._folder = folder

    def write_data(self, plan: SavePlan, planner: SavePlanner) -> Future[list[WriteResult]]:
        """Write this rank's tensors. There are no results: no index is made of such files."""
        if plan.items:
            name = f"shard-{plan.storage_data['shard_index']:05}-model-00001-of-00001.safetensors"
            # Those of large elements first: each begins at a multiple of its element's size.
            items = sorted(plan.items, key=lambda item: -_dtype(item).itemsize)
            with (self._folder / name).open("wb") as file:
                file.write(_header(items))
                for item in items:
                    tensor = planner.resolve_data(item)
                    assert isinstance(tensor, torch.Tensor)
                    _write(tensor, file)
        done: Future[list[WriteResult]] = Future()
        done.set_result([])
        return done


def _header(items: list[WriteItem]) -> bytes:
    """The beginning of a safetensors file, with the places by which torch's reader knows shards."""
    entries: dict[str, Any] = {}
    places: dict[str, Mapping[str, Any]] = {}
    end = 0
    for item in items:
        assert item.tensor_data is not None, "optimizers and models hold tensors"
        name, shape = item.index.fqn, list(item.tensor_data.chunk.sizes)
        begin, end = end, end + prod(shape) * _dtype(item).itemsize
        entries[name] = {
            "dtype": _DTYPES[_dtype(item)],
            "shape": shape,
            "data_offsets": [begin, end],
        }
        places[name] = {"saved_offsets": list(item.tensor_data.chunk.offsets)}
    entries["__metadata__"] = {
        "DCP_SHARDING_INFO": json.dumps(places),
        "DCP_VERSION": "1.0",
        "format": "pt",
    }
    text = json.dumps(entries, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text


def _dtype(item: WriteItem) -> torch.dtype:
    assert item.tensor_data is not None
    return item.tensor_data.properties.dtype


def _write(tensor: torch.Tensor, file: BinaryIO) -> None:
    flat = tensor.detach().contiguous().reshape(-1).view(torch.uint8)
    for piece in flat.split(PIECE_BYTES):
        file.write(piece.cpu().numpy().data)
