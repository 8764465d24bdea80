"""The output directory of a run: configuration, metrics, rollouts, checkpoints.

OUTPUT/config.yaml            the resolved configuration
OUTPUT/metrics.jsonl          one object per step
OUTPUT/rollouts/step_*.jsonl  one object per prompt
OUTPUT/checkpoints/step_*     Hugging Face model directories
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from mmr1.config import Section, dump_yaml
from mmr1.types import MediaRef, Reward, ScoredGroup, StepStats
from mmr1.vision.families.qwen2_5_vl import Family


def refuse_existing_run(path: str) -> None:
    """Two runs never share a directory. Raises ValueError when one is there."""
    if any((Path(path) / name).exists() for name in ("config.yaml", "metrics.jsonl")):
        raise ValueError(
            f"trainer.output_dir '{path}' already holds a run; name another directory, "
            "or remove this one"
        )


class RunDirectory:
    """Creates the directory of a new run and writes into it.

    Raises:
        ValueError: The directory holds a run already.
    """

    def __init__(self, path: str, config: Section) -> None:
        refuse_existing_run(path)
        self.path = Path(path)
        self.path.mkdir(parents=True, exist_ok=True)
        (self.path / "config.yaml").write_text(dump_yaml(config))
        self.metrics_file = self.path / "metrics.jsonl"

    def log(self, stats: StepStats) -> None:
        """Append one line to ``metrics.jsonl``."""
        append_json(self.metrics_file, [stats])

    def log_dropped(self, rows: Iterable[dict[str, str]]) -> None:
        """Name the rows that were left out in ``quarantine.jsonl``; no file without any."""
        if rows := list(rows):
            append_json(self.path / "quarantine.jsonl", rows)

    def log_rollouts(
        self, step: int, scored: Iterable[ScoredGroup], advantages: Iterable[float]
    ) -> None:
        """Write the step's prompts, completions, rewards and advantages."""
        queue = iter(advantages)
        rows = [_rollout_row(step, group, queue) for group in scored]
        append_json(self.path / "rollouts" / f"step_{step:06d}.jsonl", rows)

    def save_model(self, model: Any, family: Family, step: int) -> Path:
        """Write a Hugging Face directory, whole or not at all."""
        target = self.path / "checkpoints" / f"step_{step:06d}"
        temporary = target.with_name(target.name + ".tmp")
        shutil.rmtree(temporary, ignore_errors=True)
        model.save_pretrained(temporary)
        family.processor.save_pretrained(temporary)
        for file in temporary.iterdir():
            _sync(file)
        temporary.replace(target)
        _sync(target.parent)
        return target


def append_json(path: Path, rows: Iterable[Any]) -> None:
    """Append objects to a JSON Lines file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a", encoding="utf-8") as file:
        for row in rows:
            file.write(json.dumps(row, ensure_ascii=False) + "\n")


def _rollout_row(step: int, scored: ScoredGroup, advantages: Any) -> dict[str, Any]:
    sample = scored.group.prompt.sample
    return {
        "step": step,
        "id": sample.id,
        "prompt": scored.group.prompt.text,
        "media": [_media(m) for m in sample.media],
        "answer": sample.answer,
        "task": sample.task,
        "completions": [
            {
                "text": completion.text,
                "tokens": len(completion.token_ids),
                "truncated": completion.truncated,
                "policy_version": completion.policy_version,
                **_reward(reward),
                "advantage": next(advantages),
            }
            for completion, reward in zip(scored.group.completions, scored.rewards, strict=True)
        ],
    }


def _media(media: MediaRef) -> dict[str, Any]:
    path = None if media.path is None else str(media.path)
    return {"kind": media.kind, "path": path, "digest": media.digest()}


def _reward(reward: Reward) -> dict[str, Any]:
    return {
        "reward": reward.value,
        "parts": dict(reward.parts),
        "status": str(reward.status),
        "error": reward.error,
    }


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
