"""Rollouts that run ahead of the updates, with and without importance sampling."""

from __future__ import annotations

from pathlib import Path

from scripts.claims.claim import Claim, Hypothesis, Measured, Trial
from scripts.claims.training import trained

RL = Path(__file__).with_name("rl.yaml")


def ahead(steps: int, corrected: bool) -> tuple[str, ...]:
    level = "token" if corrected else "none"
    return (f"rollout.max_off_policy_steps={steps}", f"algorithm.rollout_is={level}")


ARMS: dict[str, tuple[str, ...]] = {
    "in turn": ahead(0, corrected=False),
    "1 ahead": ahead(1, corrected=True),
    "2 ahead": ahead(2, corrected=True),
    "4 ahead": ahead(4, corrected=True),
    "1 ahead, not corrected": ahead(1, corrected=False),
    "2 ahead, not corrected": ahead(2, corrected=False),
    "4 ahead, not corrected": ahead(4, corrected=False),
}


def run(trial: Trial) -> Measured:
    return trained(trial, RL, ARMS[trial.arm])


CLAIM = Claim(
    title="Staleness",
    sentence="Rollouts from weights of a few updates ago do no harm, if the loss is corrected.",
    source="[2505.24298](https://arxiv.org/abs/2505.24298)",
    arms=ARMS,
    run=run,
    hypotheses=(
        Hypothesis(
            "The greedy accuracy with rollouts 1 ahead is not lower by 0.05 than in turn.",
            "greedy",
            "1 ahead",
            "in turn",
            -0.05,
        ),
        Hypothesis(
            "The greedy accuracy with rollouts 4 ahead is not lower by 0.05 than in turn.",
            "greedy",
            "4 ahead",
            "in turn",
            -0.05,
        ),
        Hypothesis(
            "With rollouts 4 ahead, the greedy accuracy is higher with the correction.",
            "greedy",
            "4 ahead",
            "4 ahead, not corrected",
            0.03,
        ),
    ),
    shown={
        "greedy": "accuracy, greedy",
        "sampled": "accuracy, sampled",
        "area": "accuracy of all rollouts",
        "sampled_format": "right form, sampled",
        "entropy": "entropy at the end",
    },
    curve="accuracy of the rollouts",
)
