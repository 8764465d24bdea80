"""Shared preparations of claims: SFT to start from, and the last checkpoint of a run."""

from __future__ import annotations

from pathlib import Path

from mmr1.config.file import load_config
from mmr1.trainer.sft import run_sft


def newest(run: Path) -> Path:
    """The last checkpoint of a run."""
    return max((run / "checkpoints").glob("step_*"))


def taught(path: Path, output: Path, model: Path, data: Path, seed: int) -> Path:
    """``mmr1 sft`` on ``data/sft.jsonl``, continued where it was interrupted; the checkpoint."""
    own = [
        *(f"model.path={model}", f"seed={seed}", f"trainer.output_dir={output}"),
        *(f"data.train={data / 'sft.jsonl'}", f"data.media_root={data}"),
    ]
    run_sft(load_config(path, own, "sft"), resume=True)
    return newest(output)
