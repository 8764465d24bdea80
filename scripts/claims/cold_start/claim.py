"""A cold start and then RL, against RL alone and against SFT alone."""

from __future__ import annotations

from pathlib import Path

from mmr1.config.file import load_config
from mmr1.trainer.offline.sft import run_sft
from scripts.claims.claim import Claim, Hypothesis, Measured, Trial
from scripts.claims.training import evaluated, measured, newest, settings, train

RL, SFT = (Path(__file__).with_name(f"{name}.yaml") for name in ("rl", "sft"))
BOTH, SFT_ALONE, RL_ALONE = "cold start, then RL", "SFT alone", "RL alone"
LONGER = "trainer.max_steps=110"
"""RL alone also has the compute of the cold start."""
ARMS: dict[str, tuple[str, ...]] = {BOTH: (), SFT_ALONE: (), RL_ALONE: (LONGER,)}


def run(trial: Trial) -> Measured:
    if trial.arm == SFT_ALONE:
        return sft_alone(trial)
    model = trial.start / "model" if trial.arm == RL_ALONE else None
    train(trial, RL, ARMS[trial.arm], model)
    return measured(trial.folder / "run")


def sft_alone(trial: Trial) -> Measured:
    """Has no rollouts, so there is no curve."""
    run = trial.folder / "run"
    own = [*settings(trial, run), f"data.train={trial.start / 'sft.jsonl'}", "data.eval=null"]
    run_sft(load_config(SFT, own), resume=True)
    return Measured(evaluated(trial, RL, newest(run), trial.folder / "eval"))


CLAIM = Claim(
    title="Cold start then RL",
    sentence="A cold start followed by RL is better than RL alone and than SFT alone.",
    source="[2501.12948](https://arxiv.org/abs/2501.12948), section 2.3; "
    "[2503.10615](https://arxiv.org/abs/2503.10615)",
    arms=ARMS,
    run=run,
    hypotheses=(
        Hypothesis(
            "Sampled accuracy is higher after a cold start and RL than after SFT alone.",
            "sampled",
            BOTH,
            SFT_ALONE,
            0.05,
        ),
        Hypothesis(
            "Greedy accuracy is higher after a cold start and RL than after SFT alone.",
            "greedy",
            BOTH,
            SFT_ALONE,
            0.05,
        ),
        Hypothesis(
            "Sampled accuracy is higher after a cold start and RL than after RL alone.",
            "sampled",
            BOTH,
            RL_ALONE,
            0.05,
        ),
    ),
    shown={
        "greedy": "accuracy, greedy",
        "sampled": "accuracy, sampled",
        "greedy_format": "right form, greedy",
        "sampled_format": "right form, sampled",
    },
    curve="accuracy of the rollouts",
)
