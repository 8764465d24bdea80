"""Float32 buffers in main memory for an optimizer that steps there (``optimizer.offload``).

They lie in blocks that are allocated once. Where the trained weights are on a GPU the blocks are
pinned: copies from and to pageable memory go through a small buffer of the driver's, one at a time,
and hold up whoever asks for them.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch.distributed.tensor import DTensor

BLOCK = 1 << 26
"""Elements of a block; torch's allocator of pinned memory rounds up to a power of two."""


def local(tensor: torch.Tensor) -> torch.Tensor:
    """What this rank has of it."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def buffers_for(masters: Sequence[torch.Tensor], pinned: bool) -> list[torch.Tensor]:
    """A float32 buffer of the shape of each, sharded where it is; their values are undefined."""
    sizes = [local(master).numel() for master in masters]
    buffers: list[torch.Tensor] = []
    block, used = torch.empty(0), 0
    for i, (master, size) in enumerate(zip(masters, sizes, strict=True)):
        if used + size > len(block):
            block, used = torch.empty(_block_size(sizes[i:]), pin_memory=pinned), 0
        own = block[used : used + size].view(local(master).shape)
        used += size
        if isinstance(master, DTensor):
            own = DTensor.from_local(
                own,
                master.device_mesh,
                master.placements,
                run_check=False,
                shape=master.shape,
                stride=master.stride(),
            )
        buffers.append(own)
    return buffers


def _block_size(sizes: Sequence[int]) -> int:
    """Of the next block: as large as a block is, the first tensor, or the rest of all."""
    return max(sizes[0], min(BLOCK, sum(sizes)))


def bring(buffers: Sequence[torch.Tensor], tensors: Sequence[torch.Tensor]) -> None:
    """Copy tensors of a device into the buffers, and wait."""
    for buffer, tensor in zip(buffers, tensors, strict=True):
        local(buffer).copy_(local(tensor), non_blocking=True)
    _wait(tensors)


def send(
    masters: Sequence[torch.Tensor],
    parameters: Sequence[torch.Tensor],
    buffers: Sequence[torch.Tensor],
) -> None:
    """Copy masters to the parameters, rounded to their type in the buffers, and wait.

    Half as many bytes go to a GPU as the masters have.
    """
    for master, parameter, buffer in zip(masters, parameters, buffers, strict=True):
        own, there = local(master), local(parameter)
        rounded = local(buffer).view(-1).view(there.dtype)[: own.numel()].view(own.shape)
        rounded.copy_(own)
        there.copy_(rounded, non_blocking=True)
    _wait(parameters)


def _wait(tensors: Sequence[torch.Tensor]) -> None:
    if any(local(tensor).is_cuda for tensor in tensors):
        torch.cuda.synchronize()
