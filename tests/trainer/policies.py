"""A policy whose weights are a number of updates."""

from __future__ import annotations

import torch


class Policy:
    def __init__(self) -> None:
        self.version = 0
        self._weight = torch.zeros(())

    def update(self) -> None:
        self.version += 1
        self._weight.fill_(self.version)

    def weights(self, copy: bool = False) -> dict[str, torch.Tensor]:
        return {"w": self._weight.clone() if copy else self._weight}
