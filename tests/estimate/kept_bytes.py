"""Bytes that autograd keeps for the backward pass."""

from __future__ import annotations

import torch

from mmr1.trainer.forward.scores import completion_scores


def kept_bytes(model, groups) -> int:
    """Bytes of distinct memory that autograd keeps for the backward pass, weights aside."""
    weights = {p.untyped_storage().data_ptr() for p in model.parameters()}
    saved: dict[int, int] = {}
    alive = []

    def pack(tensor: torch.Tensor) -> None:
        # Tensors that were kept here or returned would hold the graph that holds this function:
        # a cycle that Python's garbage collector does not see.
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in weights:
            saved[storage.data_ptr()] = storage.nbytes()
        alive.append(storage)  # freed memory would be given out again, and counted once

    def unpack(nothing: None) -> torch.Tensor:
        raise AssertionError("no backward pass is run")

    with torch.autograd.graph.saved_tensors_hooks(pack, unpack):
        completion_scores(model, groups)
    return sum(saved.values())
