"""RL on sums in text and then in pictures, against pictures alone."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from scripts.claims.claim import Measured, Trial
from scripts.claims.sums.sums import prepared
from scripts.claims.training import measured, newest, train

RL = Path(__file__).with_name("rl.yaml")
TEXT_FIRST = "text first"
ON_TEXT = "trainer.max_steps=24"


def run(trial: Trial) -> Measured:
    data, model = prepared(trial)
    if trial.arm == TEXT_FIRST:
        earlier = replace(trial, folder=trial.folder / "text")
        own = (ON_TEXT, f"data.train={data / 'text.jsonl'}")
        train(earlier, RL, own, model, data)
        model = newest(earlier.folder / "run")
    train(trial, RL, trial.overrides, model, data)
    return measured(trial.folder / "run")
