"""Vision features of a frozen tower, kept across forward passes."""

from __future__ import annotations

import torch


class FeatureCache:
    """Features ``[tokens, H]`` by the digest of the medium; the least recently used go first.

    One cache serves every model whose (frozen) tower has the same weights: log-probs, reference,
    update and all epochs.
    """

    def __init__(self, max_bytes: int = 2 * 1024**3) -> None:
        self._max_bytes = max_bytes
        self._kept: dict[str, torch.Tensor] = {}
        self._bytes = 0

    def __contains__(self, digest: str) -> bool:
        return digest in self._kept

    def __len__(self) -> int:
        return len(self._kept)

    def __getitem__(self, digest: str) -> torch.Tensor:
        rows = self._kept.pop(digest)
        self._kept[digest] = rows  # re-inserted last: dicts keep insertion order
        return rows

    def __setitem__(self, digest: str, rows: torch.Tensor) -> None:
        assert not rows.requires_grad, "features of a trained tower change every step"
        assert digest not in self._kept, "features are made once"
        self._kept[digest] = rows.clone()  # a slice would keep the whole batch alive
        self._bytes += rows.nbytes
        while self._bytes > self._max_bytes and self._kept:
            oldest = self._kept.pop(next(iter(self._kept)))
            self._bytes -= oldest.nbytes
