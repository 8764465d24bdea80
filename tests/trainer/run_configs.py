"""Configurations of small runs in this process."""

from __future__ import annotations

from pathlib import Path

from mmr1.config import Config
from mmr1.config.file import load_config


def config_of(
    model: Path, data: Path, digits: Path, out: Path, *overrides: str, command: str = "train"
) -> Config:
    """A short run on records whose media lie in the folder of the digits."""
    return load_config(
        None,
        [
            f"model.path={model}",
            "model.dtype=float32",
            f"data.train={data}",
            f"data.media_root={digits}",
            f"trainer.output_dir={out}",
            "trainer.logging_steps=1000",
            "trainer.threads=1",
            "optimizer.lr=0.001",
            "optimizer.scheduler.warmup_steps=0",
            *(["rollout.engine=hf"] if command == "train" else []),
            *overrides,
        ],
        command,
    )
