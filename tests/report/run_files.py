"""Runs written by hand for the report's tests: every number in them is known."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml
from PIL import Image

HOSTILE = "<think>see <script>document.title='owned'</script></think><answer>&lt;7&gt;</answer>"


def completion(text: str, reward: float | None = 1.0, **more: Any) -> dict[str, Any]:
    return {
        "text": text,
        "tokens": len(text.split()),
        "truncated": False,
        "policy_version": 0,
        "reward": reward,
        "components": {"format": 1.0, "math": reward},
        "status": "ok" if reward is not None else "timeout",
        "error": None if reward is not None else "math: not decided within 2 s",
        "advantage": 0.0 if reward is None else reward - 0.5,
        **more,
    }


def prompt(
    name: str,
    completions: Sequence[Mapping[str, Any]],
    *,
    answer: Any = "7",
    task: str = "math",
    media: Sequence[Mapping[str, Any]] = (),
) -> dict[str, Any]:
    return {
        "id": name,
        "prompt": "<|im_start|>user\n<|vision_start|><|image_pad|><|vision_end|>Which is it?",
        "answer": answer,
        "task": task,
        "media": list(media),
        "completions": list(completions),
    }


def image(path: Path, size: tuple[int, int] = (200, 100), seen: Any = None) -> dict[str, Any]:
    """A plain grey picture on disk and its entry in a rollout."""
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", size, (128, 128, 128)).save(path)
    digest = path.stem.encode().hex()
    seen = seen or list(size)
    return {"kind": "image", "path": str(path), "digest": digest, "seen": seen, "options": {}}


def write_run(
    folder: Path,
    rollouts: Mapping[int, Sequence[Mapping[str, Any]]],
    *,
    functions: Mapping[str, Any] | None = None,
    data: Mapping[str, Any] | None = None,
    metrics: Sequence[Mapping[str, Any]] | None = None,
    quarantined: Sequence[Mapping[str, str]] = (),
    faults: Mapping[str, int] | None = None,
    seed: int = 0,
) -> Path:
    """The directory of a run with these rollouts by step."""
    folder.mkdir(parents=True)
    config = {
        "seed": seed,
        "model": {"path": "models/tiny"},
        "data": dict(data or {}),
        "rewards": functions or {"format": {}, "math": {}},
        "algorithm": {"name": "grpo"},
        "trainer": {"max_steps": 4},
    }
    (folder / "config.yaml").write_text(yaml.safe_dump(config))
    rows = metrics or [
        {
            "step": s,
            "reward/mean": s / 4,
            "rewards/math/mean": s / 4,
            "entropy": 1 / s,
            "kl": 0.0,
            "reward/num_invalid": 2.0,
            "rewards/math/num_invalid": 2.0,
            "reward/frac_zero_std": 0.5,
        }
        for s in range(1, 5)
    ]
    _write(folder / "metrics.jsonl", rows)
    _write(folder / "quarantine.jsonl", quarantined)
    summary = {"state": "finished", "step": len(rows), "faults": dict(faults or {})}
    (folder / "summary.json").write_text(json.dumps(summary))
    for step, groups in rollouts.items():
        _write(
            folder / "rollouts" / f"step_{step:06d}.jsonl", [{"step": step, **g} for g in groups]
        )
    return folder


def _write(path: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
