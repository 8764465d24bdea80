"""Weights in shared memory: few descriptors, the same values, a clear refusal."""

from __future__ import annotations

import pickle
from multiprocessing.reduction import ForkingPickler
from pathlib import Path

import pytest
import torch
import torch.multiprocessing  # teaches the pickler about tensors

from mmr1.rollout import shared_weights
from mmr1.rollout.shared_weights import share_weights


def descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


@pytest.fixture
def weights() -> dict[str, torch.Tensor]:
    """As many tensors as a 3B model has, of two dtypes and odd shapes, one without a dimension."""
    dtypes = (torch.bfloat16, torch.float32)
    made = {f"layer.{i}": torch.randn(i % 5 + 1, 3).to(dtypes[i % 2]) for i in range(825)}
    return {**made, "scale": torch.tensor(2.5)}


def test_another_process_reads_what_was_written_through_one_descriptor_a_dtype(weights):
    before = descriptors()
    shared = share_weights(weights)
    received = pickle.loads(ForkingPickler.dumps(shared)).tensors()
    assert descriptors() - before <= 8
    assert received.keys() == weights.keys()
    assert all(torch.equal(received[name], weight) for name, weight in weights.items())
    assert all(received[name].dtype == weight.dtype for name, weight in weights.items())

    shared.write({name: weight + 1 for name, weight in weights.items()})
    assert all(torch.equal(received[name], weight + 1) for name, weight in weights.items())


def test_too_little_shared_memory_is_told_before_it_is_written(weights, monkeypatch):
    usage = type("Usage", (), {"free": 1000})
    monkeypatch.setattr(shared_weights.shutil, "disk_usage", lambda path: usage)
    with pytest.raises(ValueError, match="--shm-size"):
        share_weights(weights)
