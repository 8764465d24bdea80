"""Rewards for the form, for the answer, for both, and one that can be hacked."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

from scripts.claims.claim import Claim, Hypothesis, Measured, Trial
from scripts.claims.training import trained

RL = Path(__file__).with_name("rl.yaml")
FUNCTIONS = "rewards.functions"
ARMS = {
    "both": (),
    "format": (f"{FUNCTIONS}.math.weight=0",),
    "accuracy": (f"{FUNCTIONS}.format.weight=0",),
    "hackable": (f"{FUNCTIONS}.math.weight=0", f"{FUNCTIONS}.mentions.weight=1"),
}


def run(trial: Trial) -> Measured:
    measured = trained(trial, RL, ARMS[trial.arm])
    result = json.loads((trial.folder / "run/eval/result.json").read_text())
    mentioned = result["sampled"]["components"]["mentions"]
    excess = mentioned - measured.numbers["sampled"]
    return replace(measured, numbers={**measured.numbers, "mentions": mentioned, "excess": excess})


CLAIM = Claim(
    title="Format and accuracy rewards",
    sentence="Rewards for the form and for the answer do different work: both together teach what "
    "neither teaches alone, and a reward that is looser than the goal is hacked.",
    source="[2501.12948](https://arxiv.org/abs/2501.12948), section 2.2.2",
    arms=ARMS,
    run=run,
    hypotheses=(
        Hypothesis(
            "Sampled accuracy is higher with both rewards than with the format reward alone.",
            "sampled",
            "both",
            "format",
            0.05,
        ),
        Hypothesis(
            "The share in the right form, sampled, is higher with both rewards than with the "
            "accuracy reward alone.",
            "sampled_format",
            "both",
            "accuracy",
            0.05,
        ),
        Hypothesis(
            "The hackable reward exceeds the accuracy by more where it is paid than where the "
            "accuracy is.",
            "excess",
            "hackable",
            "both",
            0.05,
        ),
    ),
    shown={
        "greedy": "accuracy, greedy",
        "sampled": "accuracy, sampled",
        "sampled_format": "right form, sampled",
        "mentions": "hackable reward, sampled",
        "sampled_length": "tokens, sampled",
    },
    curve="accuracy of the rollouts",
)
