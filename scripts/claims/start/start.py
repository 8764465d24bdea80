"""The shared start of a seed's arms: data, a random model and its cold start.

Real scans of the digits 0 to 4, as ``mmr1-data make digits`` writes them: 30 demonstrations, 500
held out, 371 to train on. No scan is in two of them. Fewer digits than the quickstart's ten, so
that a run takes half a minute.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from mmr1.config.file import load_config
from mmr1.trainer.sft import run_sft
from mmr1.vision.families.tiny import new_model

DIGITS = "01234"
HELD_OUT = 500
SFT = Path(__file__).with_name("sft.yaml")
Row = dict[str, Any]


def prepared(folder: Path, seed: int) -> Path:
    """``folder`` with ``data``, three files of records, ``model`` and ``sft``, made if absent."""
    done = folder / "done"
    if done.is_file():
        return folder
    make_digits(folder / "data", seed)
    if not (folder / "eval.jsonl").exists():
        write_splits(folder)
    if not (folder / "model/config.json").exists():
        new_model(folder / "model", seed=seed)
    overrides = [*where(folder, "sft"), *own(folder / "model", seed)]
    run_sft(load_config(SFT, overrides, "sft"), resume=True)
    done.touch()
    return folder


def make_digits(folder: Path, seed: int) -> None:
    """Make digits in a separate process: its children would load what this one has loaded."""
    command = ["datasets_prep", "make", "digits", "--output", folder, "--seed", seed]
    subprocess.run([sys.executable, "-m", *map(str, command)], check=True)


def where(folder: Path, run: str) -> Iterable[str]:
    """Overrides for the records of a start, and for a run's folder in it."""
    yield f"data.train={folder / 'sft.jsonl'}"
    yield f"data.media_root={folder / 'data'}"
    yield f"trainer.output_dir={folder / run}"


def own(model: Path, seed: int) -> Iterable[str]:
    yield f"model.path={model}"
    yield f"seed={seed}"


def write_splits(folder: Path) -> None:
    """The rows of :data:`DIGITS`; ``eval.jsonl`` comes last."""
    shown, *others = (read(folder / "data" / f"{split}.jsonl") for split in ("sft", "rl", "eval"))
    rest = [row for rows in others for row in rows]
    write(folder / "sft.jsonl", shown)
    write(folder / "rl.jsonl", rest[HELD_OUT:])
    write(folder / "eval.jsonl", rest[:HELD_OUT])


def read(path: Path) -> list[Row]:
    return [row for row in map(json.loads, path.open()) if row["answer"] in DIGITS]


def write(path: Path, rows: Iterable[Row]) -> None:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
