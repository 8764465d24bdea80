"""Checkpoints are written piece by piece, and are the files that torch's own writer writes."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch
import torch.distributed.checkpoint as dcp
from safetensors import safe_open
from safetensors.torch import load_file

from mmr1.trainer.models import streaming
from mmr1.trainer.models.state import load_tensors, save_tensors

TENSORS = {
    "steps": torch.tensor(7, dtype=torch.int64),
    "half": torch.randn(5, 3).bfloat16(),
    "mask": torch.tensor([True, False, True]),
    "weight": torch.randn(33, 7),
    "turned": torch.randn(4, 6).T,
    "empty": torch.empty(0, 4),
    "odd": torch.arange(3, dtype=torch.uint8),
}

PEAK = """
import sys, torch
from pathlib import Path
from mmr1.trainer.models.state import save_tensors

def peak():
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM")) * 1024

save_tensors(Path(sys.argv[1]) / "warm", {"a": torch.ones(1)})
tensors = {str(n): torch.ones(32 << 20) for n in range(2)}
Path("/proc/self/clear_refs").write_text("5")
before = peak()
save_tensors(Path(sys.argv[1]) / "large", tensors)
print(peak() - before)
"""


def by_torch(folder: Path) -> Path:
    writer = dcp.HuggingFaceStorageWriter(str(folder), save_distributed=True)
    tensors = {n: t.contiguous().view(1) if t.dim() == 0 else t for n, t in TENSORS.items()}
    tensors = {name: tensor.contiguous() for name, tensor in tensors.items()}
    dcp.save(tensors, storage_writer=writer, no_dist=True)
    return folder


@pytest.mark.parametrize("piece", [5, streaming.PIECE_BYTES])
def test_the_file_is_the_one_that_torch_writes(piece, monkeypatch, tmp_path):
    monkeypatch.setattr(streaming, "PIECE_BYTES", piece)
    (ours,) = save_tensors(tmp_path / "ours", TENSORS)
    (theirs,) = by_torch(tmp_path / "theirs").iterdir()
    assert ours.name == theirs.name
    assert ours.stat().st_size == pytest.approx(theirs.stat().st_size, abs=8)
    left, right = load_file(ours), load_file(theirs)
    assert left.keys() == right.keys()
    for name in left:
        assert left[name].dtype == right[name].dtype
        assert torch.equal(left[name], right[name])
    with safe_open(ours, "pt") as one, safe_open(theirs, "pt") as other:
        assert sorted(one.metadata()) == sorted(other.metadata())


@pytest.mark.parametrize("write", ["ours", "torch"])
def test_what_either_wrote_is_read(write, tmp_path):
    if write == "ours":
        save_tensors(tmp_path / "saved", TENSORS)
    else:  # as a run before this one did
        by_torch(tmp_path / "saved")
    read = {name: torch.zeros_like(tensor) for name, tensor in TENSORS.items()}
    load_tensors(tmp_path / "saved", read)
    for name, tensor in TENSORS.items():
        assert torch.equal(read[name], tensor), name


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="Linux counts the bytes")
def test_saving_takes_no_copy_in_main_memory(tmp_path):
    """256 MiB of tensors: torch's writer takes 512 more."""
    command = [sys.executable, "-c", PEAK, str(tmp_path)]
    counted = int(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    assert counted < 32 << 20
