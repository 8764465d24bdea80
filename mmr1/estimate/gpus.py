"""The GPUs of this machine."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Gpus:
    """Equal GPUs.

    Attributes:
        memory: Bytes of each.
    """

    count: int
    memory: float


def gpus_of_this_machine() -> Gpus:
    """The GPUs that torch sees, without those that ``CUDA_VISIBLE_DEVICES`` hides."""
    import torch

    count = torch.cuda.device_count()
    sizes = [torch.cuda.get_device_properties(i).total_memory for i in range(count)]
    return Gpus(count, float(min(sizes, default=0)))
