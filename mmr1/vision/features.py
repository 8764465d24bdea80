"""Features of images and videos: each computed once, with a frozen tower once for the run."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from mmr1.vision.families.loading import model_parts, packed_architecture_of
from mmr1.vision.prepare import Medium

MAX_BYTES = 2 * 1024**3


class FeatureCache:
    """Features by the digest of the medium; the least recently used go first.

    They are ``[tokens, H]``, of models of a family.

    One cache serves every model whose (frozen) tower has the same weights: rollouts, log-probs,
    reference, update and all epochs.

    Args:
        max_bytes: Bytes of the features in memory.
    """

    def __init__(self, max_bytes: int = MAX_BYTES) -> None:
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
            self._bytes -= self._kept.pop(next(iter(self._kept))).nbytes


def encode_media(
    model: Any, media: Sequence[Medium], features: FeatureCache | None = None
) -> torch.Tensor:
    """Features of media by the model's tower, concatenated: ``[sum of medium.tokens, H]``.

    Equal media are encoded once. What is to be kept is encoded one medium at a time: rounding
    depends on what else is in a batch, and a resumed run meets its media in other batches.

    Raises:
        ValueError: Features are to be kept, but the tower is being trained.
    """
    architecture, tower = packed_architecture_of(model), model_parts(model).tower
    assert tower is not None, "the model has no vision tower"
    frozen = not any(p.requires_grad for p in tower.parameters())
    if features is not None and not frozen:
        raise ValueError("vision features can only be kept where the vision tower is frozen")
    rows_of: dict[str, torch.Tensor] = {}
    if features is not None:
        rows_of = {m.digest: features[m.digest] for m in media if m.digest in features}
    missing = list({m.digest: m for m in media if m.digest not in rows_of}.values())
    batches = [missing] if features is None and missing else [[m] for m in missing]
    for batch in batches:
        with torch.set_grad_enabled(torch.is_grad_enabled() and not frozen):
            encoded = architecture.encode(tower, batch)
        for medium, rows in zip(batch, encoded, strict=True):
            rows_of[medium.digest] = rows
            if features is not None:
                features[medium.digest] = rows
    return torch.cat([rows_of[m.digest] for m in media])


def encode_nothing(model: Any) -> torch.Tensor:
    """``[1, H]``: the features of a blank medium, to take part in a sharded tower's calls."""
    architecture, tower = packed_architecture_of(model), model_parts(model).tower
    return architecture.encode(tower, [architecture.blank_medium(tower)])[0]
