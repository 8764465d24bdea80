"""Rewards of steps against the reward of the answer, on sums whose digits are named first."""

from __future__ import annotations

from pathlib import Path

from scripts.claims.claim import Measured, Trial
from scripts.claims.sums.sums import prepared
from scripts.claims.training import measured, train

RL = Path(__file__).with_name("rl.yaml")


def run(trial: Trial) -> Measured:
    data, model = prepared(trial)
    train(trial, RL, trial.overrides, model, data)
    return measured(trial.folder / "run")
