"""Preferences and a reward model with models of several families."""

from __future__ import annotations

import json

import pytest

from mmr1_contrib.offline.dpo import run_dpo
from mmr1_contrib.offline.reward_model import run_reward_model
from tests.contrib.offline.runs import config_of
from tests.jsonl import read_jsonl
from tests.trainer.family_models import RUN, TEXT, demonstration, new_model, write_sums


@pytest.mark.parametrize("name", RUN)
def test_a_model_of_another_family_learns_pairs(name, digits, tmp_path):
    new_model(name, tmp_path / "model")
    write_sums(tmp_path)
    data = tmp_path if name in TEXT else digits
    rows = [json.loads(line) for line in (data / "rl.jsonl").read_text().splitlines()[:16]]
    for row in rows:
        chosen = demonstration(int(row["answer"]))
        row["meta"] = {"chosen": chosen, "rejected": f"{row['answer']}, I say"}
    pairs = tmp_path / "pairs.jsonl"
    pairs.write_text("".join(json.dumps(row) + "\n" for row in rows))
    keys = ("trainer.max_steps=4", "data.train_batch_size=4")
    for command, run, loss in (("dpo", run_dpo, "dpo/loss"), ("rm", run_reward_model, "loss")):
        out = tmp_path / command
        run(config_of(tmp_path / "model", pairs, data, out, *keys, command=command))
        logged = read_jsonl(out / "metrics.jsonl")
        assert logged[-1][loss] < logged[0][loss]
