"""Configurations and data of small runs of the wing."""

from __future__ import annotations

from pathlib import Path

from mmr1.config import Config
from tests.trainer import run_configs

LENGTH_PARITY = (
    "def reward(completion: str, answer) -> float:\n    return float(len(completion) % 2)\n"
)
"""A reward that tells the completions of an untrained model apart."""


def config_of(
    model: Path, data: Path, digits: Path, out: Path, *overrides: str, command: str = "train"
) -> Config:
    """See :func:`run_configs.config_of`; runs of the wing that sample do so with transformers."""
    in_rounds = command == "iterative-grpo" or any("dpo.rounds" in key for key in overrides)
    engine = ["rollout.engine=hf"] if in_rounds else []
    return run_configs.config_of(model, data, digits, out, *engine, *overrides, command=command)


def answer(digit: int) -> str:
    return f"<think>The digit is a digit.</think><answer>{digit}</answer>"


def first_rows(path: Path, folder: Path) -> Path:
    """A file of twenty of its rows, to validate on."""
    rows = path.read_text().splitlines(keepends=True)[:20]
    (folder / "held_out.jsonl").write_text("".join(rows))
    return folder / "held_out.jsonl"
