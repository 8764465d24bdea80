"""Estimators of the KL, in the loss and in the reward: which hold the policy near its reference?"""

from __future__ import annotations

from pathlib import Path

from scripts.claims.claim import Claim, Hypothesis, Measured, Trial
from scripts.claims.training import trained

RL = Path(__file__).with_name("rl.yaml")


def in_loss(estimator: str) -> tuple[str, ...]:
    return ("algorithm.use_kl_loss=true", f"algorithm.kl_estimator={estimator}")


ARMS = {
    "hardly any KL": ("algorithm.kl_coef=1e-6",),
    "k1 in the loss": in_loss("k1"),
    "k2 in the loss": in_loss("k2"),
    "k3 in the loss": in_loss("k3"),
    "k1 in the reward": ("algorithm.use_kl_loss=false", "algorithm.kl_estimator=k1"),
}


def run(trial: Trial) -> Measured:
    return trained(trial, RL, ARMS[trial.arm], curve="kl")


def nearer(text: str, farther: str, near: str) -> Hypothesis:
    return Hypothesis(text, "kl", farther, near, 0.02)


CLAIM = Claim(
    title="KL estimators",
    sentence="As a loss, k1 does not hold the policy near its reference; k2 and k3 do, and so does "
    "k1 in the reward.",
    source="[2510.01555](https://arxiv.org/abs/2510.01555)",
    arms=ARMS,
    run=run,
    hypotheses=(
        nearer(
            "The KL at the end is higher with k1 in the loss than with k2 in the loss.",
            "k1 in the loss",
            "k2 in the loss",
        ),
        nearer(
            "The KL at the end is higher with k1 in the loss than with k1 in the reward.",
            "k1 in the loss",
            "k1 in the reward",
        ),
        nearer(
            "The KL at the end is higher with hardly any KL than with k3 in the loss.",
            "hardly any KL",
            "k3 in the loss",
        ),
    ),
    shown={
        "kl": "KL at the end, nats per token",
        "greedy": "accuracy, greedy",
        "sampled": "accuracy, sampled",
        "area": "accuracy of all rollouts",
        "entropy": "entropy at the end",
    },
    curve="KL to the reference, nats per token",
)
