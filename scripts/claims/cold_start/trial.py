"""A cold start and then RL, against RL alone and against SFT alone."""

from __future__ import annotations

from pathlib import Path

from mmr1.config.file import load_config
from mmr1.trainer.offline.sft import run_sft
from scripts.claims.claim import Measured, Trial
from scripts.claims.training import evaluated, learns, measured, newest, train

RL, SFT = (Path(__file__).with_name(f"{name}.yaml") for name in ("rl", "sft"))
SFT_ALONE, RL_ALONE = "SFT alone", "RL alone"


def run(trial: Trial) -> Measured:
    if trial.arm == SFT_ALONE:
        return sft_alone(trial)
    model = trial.start / "model" if trial.arm == RL_ALONE else None
    train(trial, RL, trial.overrides, model)
    return measured(trial.folder / "run")


def sft_alone(trial: Trial) -> Measured:
    """Has no rollouts, so there is no curve."""
    run = trial.folder / "run"
    own = [*learns(trial, run), f"data.train={trial.start / 'sft.jsonl'}"]
    run_sft(load_config(SFT, own, "sft"), resume=True)
    return Measured(evaluated(trial, RL, newest(run), trial.folder / "eval"))
