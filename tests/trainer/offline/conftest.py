"""Preferences that are soon learnt, and a reward model that has learnt them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from mmr1.config import Config
from mmr1.config.file import load_config
from mmr1_contrib.offline.reward_model import run_reward_model


def answer(digit: int) -> str:
    return f"<think>The digit is a digit.</think><answer>{digit}</answer>"


@pytest.fixture(scope="module")
def pair_file(digits, tmp_path_factory) -> Path:
    """A form of answer against another, whatever the image shows: soon learnt."""
    path = tmp_path_factory.mktemp("pairs") / "pairs.jsonl"
    rows = [json.loads(line) for line in (digits / "rl.jsonl").read_text().splitlines()[:80]]
    for row in rows:
        digit = int(row["answer"])
        row["meta"] = {"chosen": answer(digit), "rejected": f"{digit} {digit}, I say"}
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def config_of(
    model: Path, data: Path, digits: Path, out: Path, *overrides: str, command: str = "train"
) -> Config:
    samples = command in ("train", "iterate") or any("dpo.rounds" in key for key in overrides)
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
            *(["rollout.engine=hf"] if samples else []),
            *overrides,
        ],
        command,
    )


def first_rows(path: Path, folder: Path) -> Path:
    """A file of twenty of its rows, to validate on."""
    rows = path.read_text().splitlines(keepends=True)[:20]
    (folder / "held_out.jsonl").write_text("".join(rows))
    return folder / "held_out.jsonl"


@pytest.fixture(scope="module")
def reward_model(tiny_model, digits, pair_file, tmp_path_factory) -> Path:
    out = tmp_path_factory.mktemp("rm") / "run"
    held_out = f"trainer.validation.data={first_rows(pair_file, out.parent)}"
    keys = ("data.train_batch_size=16", "trainer.max_steps=12", held_out)
    return run_reward_model(config_of(tiny_model, pair_file, digits, out, *keys, command="rm"))
