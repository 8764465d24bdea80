"""Numbers of a step, added up on the device that computes them and read once.

Reading a number from a GPU waits until everything before it has run. Read in every micro-batch,
the GPU would idle while the next one is laid out.
"""

from __future__ import annotations

import torch


class DeviceSums:
    """Float64 sums and maxima by name."""

    def __init__(self) -> None:
        self._values: dict[str, torch.Tensor] = {}

    def add(self, name: str, value: torch.Tensor) -> None:
        """Add a tensor of one number."""
        value = value.detach().double()
        self._values[name] = self._values[name] + value if name in self._values else value

    def widen(self, name: str, value: torch.Tensor) -> None:
        """Keep the larger one."""
        value = value.detach().double()
        before = self._values.get(name, value)
        self._values[name] = torch.maximum(before, value)

    def read(self) -> dict[str, float]:
        """The numbers, in one transfer."""
        if not self._values:
            return {}
        return dict(zip(self._values, torch.stack([*self._values.values()]).tolist(), strict=True))
