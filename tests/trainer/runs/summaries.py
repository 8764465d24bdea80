"""The folder of a run with a summary."""

from __future__ import annotations

from pathlib import Path

from mmr1.config import Config
from mmr1.trainer.runs.output import RunDirectory


def directory_in(folder: Path) -> RunDirectory:
    return RunDirectory(Config(model={"path": "x"}, trainer={"output_dir": str(folder)}))
