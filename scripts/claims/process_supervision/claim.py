"""Rewards of steps against the reward of the answer, on sums whose digits are named first."""

from __future__ import annotations

from pathlib import Path

from scripts.claims.claim import Claim, Hypothesis, Measured, Trial
from scripts.claims.sums.sums import prepared
from scripts.claims.training import measured, train

RL = Path(__file__).with_name("rl.yaml")
PROCESS, OUTCOME = "process", "outcome"
JUDGE = "algorithm.step_rewards=scripts/claims/sums/sums.py:judge"
ARMS: dict[str, tuple[str, ...]] = {PROCESS: ("algorithm.name=process_grpo", JUDGE), OUTCOME: ()}


def run(trial: Trial) -> Measured:
    data, model = prepared(trial)
    train(trial, RL, ARMS[trial.arm], model, data)
    return measured(trial.folder / "run")


CLAIM = Claim(
    title="Process and outcome supervision",
    sentence="GRPO learns more from rewards of each step than from the reward of the answer alone.",
    source="[2402.03300](https://arxiv.org/abs/2402.03300), section 4.1.3 and figure 5",
    arms=ARMS,
    run=run,
    hypotheses=(
        Hypothesis(
            "The greedy accuracy is higher with process supervision.",
            "greedy",
            PROCESS,
            OUTCOME,
            0.05,
        ),
        Hypothesis(
            "The sampled accuracy is higher with process supervision.",
            "sampled",
            PROCESS,
            OUTCOME,
            0.05,
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
