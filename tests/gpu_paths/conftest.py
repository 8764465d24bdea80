"""The stand-in device as a fixture."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from mmr1 import attention
from mmr1.vision import tower_attention
from tests.gpu_paths.stand_in import BACKEND, StandIn


@pytest.fixture
def stand_in(monkeypatch: pytest.MonkeyPatch) -> Iterator[StandIn]:
    """The device has the varlen kernel, for the heads that an A100 has it for."""

    def has_varlen_kernel(query: torch.Tensor) -> bool:
        half = query.dtype in (torch.float16, torch.bfloat16)
        return half and query.shape[-1] <= 256 and query.shape[-1] % 8 == 0

    for module in (attention, tower_attention):
        monkeypatch.setattr(module, "has_varlen_kernel", has_varlen_kernel)
    monkeypatch.setattr(BACKEND, "available", True)
    with StandIn() as device:
        yield device
