"""Preferences that are soon learnt, and a reward model that has learnt them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from mmr1_contrib.offline.reward_model import run_reward_model
from tests.contrib.offline.runs import answer, config_of, first_rows


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


@pytest.fixture(scope="module")
def reward_model(tiny_model, digits, pair_file, tmp_path_factory) -> Path:
    out = tmp_path_factory.mktemp("rm") / "run"
    held_out = f"trainer.validation.data={first_rows(pair_file, out.parent)}"
    keys = ("data.train_batch_size=16", "trainer.max_steps=12", held_out)
    return run_reward_model(config_of(tiny_model, pair_file, digits, out, *keys, command="rm"))
