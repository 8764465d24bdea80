"""RL on sums in text and then in pictures, against pictures alone."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from scripts.claims.claim import Claim, Hypothesis, Measured, Trial
from scripts.claims.sums.sums import prepared
from scripts.claims.training import measured, newest, train

RL = Path(__file__).with_name("rl.yaml")
TEXT_FIRST, PICTURES = "text first", "pictures alone"
ON_TEXT, ON_PICTURES, ALONE = (f"trainer.max_steps={steps}" for steps in (24, 24, 45))
"""A step on text costs a little less than one on pictures; the two arms cost as much."""
ARMS: dict[str, tuple[str, ...]] = {TEXT_FIRST: (ON_PICTURES,), PICTURES: (ALONE,)}


def run(trial: Trial) -> Measured:
    data, model = prepared(trial)
    if trial.arm == TEXT_FIRST:
        earlier = replace(trial, folder=trial.folder / "text")
        own = (ON_TEXT, f"data.train={data / 'text.jsonl'}")
        train(earlier, RL, own, model, data)
        model = newest(earlier.folder / "run")
    train(trial, RL, ARMS[trial.arm], model, data)
    return measured(trial.folder / "run")


CLAIM = Claim(
    title="Text before pictures",
    sentence="RL on text first and on pictures then is better on pictures than RL on pictures "
    "alone.",
    source="[2503.07536](https://arxiv.org/abs/2503.07536)",
    arms=ARMS,
    run=run,
    hypotheses=(
        Hypothesis(
            "The greedy accuracy on pictures is higher with text first.",
            "greedy",
            TEXT_FIRST,
            PICTURES,
            0.03,
        ),
        Hypothesis(
            "The sampled accuracy on pictures is higher with text first.",
            "sampled",
            TEXT_FIRST,
            PICTURES,
            0.03,
        ),
    ),
    shown={
        "greedy": "accuracy, greedy",
        "sampled": "accuracy, sampled",
        "sampled_format": "right form, sampled",
        "entropy": "entropy at the end",
    },
    curve="accuracy of the rollouts on pictures",
    over="tenths of the steps on pictures",
)
