"""Two parts of DAPO by themselves: the higher upper clip, and dynamic sampling."""

from __future__ import annotations

from pathlib import Path

from scripts.claims.claim import Claim, Hypothesis, Measured, Trial
from scripts.claims.training import trained

RL = Path(__file__).with_name("rl.yaml")
ARMS: dict[str, tuple[str, ...]] = {
    "neither": (),
    "clip-higher": ("algorithm.clip_ratio_high=0.28",),
    "dynamic sampling": ("algorithm.dynamic_sampling=true",),
}


def run(trial: Trial) -> Measured:
    return trained(trial, RL, ARMS[trial.arm], curve="entropy")


CLAIM = Claim(
    title="Clip-higher and dynamic sampling",
    sentence="A higher upper clip keeps the entropy up, and dynamic sampling learns more in "
    "as many steps.",
    source="[2503.14476](https://arxiv.org/abs/2503.14476), sections 3.1 and 3.2",
    arms=ARMS,
    run=run,
    hypotheses=(
        Hypothesis(
            "The entropy at the end is higher with clip-higher.",
            "entropy",
            "clip-higher",
            "neither",
            0.05,
        ),
        Hypothesis(
            "After as many steps, the sampled accuracy is higher with dynamic sampling.",
            "sampled",
            "dynamic sampling",
            "neither",
            0.03,
        ),
    ),
    shown={
        "entropy": "entropy at the end",
        "clipped": "clipped tokens",
        "no_signal": "groups without a signal",
        "greedy": "accuracy, greedy",
        "sampled": "accuracy, sampled",
    },
    curve="entropy, nats per token",
)
