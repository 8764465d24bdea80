"""What two runs that should be equal have in common: all but their times."""

from __future__ import annotations

from pathlib import Path

import torch
from safetensors.torch import load_file

from tests.jsonl import read_jsonl


def outcome(run: Path) -> dict[str, object]:
    """Everything that two equal runs share: metrics but for times, rollouts, weights, state."""
    metrics = read_jsonl(run / "metrics.jsonl")
    last = max((run / "checkpoints").glob("step_??????"))
    return {
        "metrics": [{k: v for k, v in m.items() if not k.startswith("time/")} for m in metrics],
        **{str(p.relative_to(run)): p.read_bytes() for p in sorted(run.glob("rollouts/*"))},
        **{
            str(p.relative_to(run)): content(p)
            for p in sorted(last.rglob("*"))
            if p.is_file() and not p.name.startswith("manifest")  # it holds the step's seconds
        },
    }


def content(path: Path) -> object:
    """The bytes; of tensors those of each, for their order in the file is safetensors' own."""
    if path.suffix != ".safetensors":
        return path.read_bytes()
    return {
        name: bytes(t.view(torch.uint8).numpy()) if t.dim() else t.item()
        for name, t in load_file(path).items()
    }


def assert_same(one: Path, other: Path) -> None:
    left, right = outcome(one), outcome(other)
    assert left.keys() == right.keys()
    for name in left:
        assert left[name] == right[name], name
