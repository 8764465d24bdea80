"""Shared preparations of claims: a short run, and SFT to start from."""

from __future__ import annotations

from pathlib import Path

from mmr1.config.file import load_config
from mmr1.trainer.sft import run_sft

QUICK = ("trainer.max_steps=40", "eval.limit=100")


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
