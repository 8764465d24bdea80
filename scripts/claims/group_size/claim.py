"""Few prompts with many completions, or many prompts with few: equal completions per step."""

from __future__ import annotations

from pathlib import Path

from scripts.claims.claim import Claim, Hypothesis, Measured, Trial
from scripts.claims.training import trained

RL = Path(__file__).with_name("rl.yaml")
COMPLETIONS = 64


def groups_of(n: int) -> tuple[str, ...]:
    return (f"rollout.n={n}", f"rollout.batch_size={COMPLETIONS // n}")


ARMS = {f"groups of {n}": groups_of(n) for n in (2, 4, 8, 16)}


def run(trial: Trial) -> Measured:
    return trained(trial, RL, ARMS[trial.arm])


CLAIM = Claim(
    title="Group size",
    sentence="With equally many completions, groups of two do as well as groups of sixteen.",
    source="[2510.00977](https://arxiv.org/abs/2510.00977)",
    arms=ARMS,
    run=run,
    hypotheses=(
        Hypothesis(
            "Groups of 2 are not worse than groups of 16 by 0.05 of sampled accuracy.",
            "sampled",
            "groups of 2",
            "groups of 16",
            -0.05,
        ),
        Hypothesis(
            "Groups of 2 are not worse than groups of 16 by 0.05 of the accuracy of all rollouts.",
            "area",
            "groups of 2",
            "groups of 16",
            -0.05,
        ),
    ),
    shown={
        "greedy": "accuracy, greedy",
        "sampled": "accuracy, sampled",
        "area": "accuracy of all rollouts",
        "no_signal": "groups without a signal",
        "entropy": "entropy at the end",
    },
    curve="accuracy of the rollouts",
)
