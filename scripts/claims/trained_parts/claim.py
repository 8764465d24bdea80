"""All weights, adapters alone, and all weights but the vision tower's."""

from __future__ import annotations

from pathlib import Path

from scripts.claims.claim import Claim, Hypothesis, Measured, Trial
from scripts.claims.training import trained

RL = Path(__file__).with_name("rl.yaml")
FULL, FROZEN = "full", "frozen tower"
LORA, RANK_1 = "LoRA, rank 16", "LoRA, rank 1"
HIGHER = "optimizer.lr=2e-3"
"""Ten times that of full training, as the source advises for adapters."""
ARMS: dict[str, tuple[str, ...]] = {
    FULL: (),
    FROZEN: ("model.freeze_vision_tower=true",),
    LORA: ("model.lora={rank: 16, alpha: 32}", HIGHER),
    RANK_1: ("model.lora={rank: 1, alpha: 32}", HIGHER),
}


def run(trial: Trial) -> Measured:
    return trained(trial, RL, ARMS[trial.arm])


def no_worse(arm: str, words: str) -> Hypothesis:
    text = f"The greedy accuracy with {words} is not lower by 0.05 than with full training."
    return Hypothesis(text, "greedy", arm, FULL, -0.05)


CLAIM = Claim(
    title="LoRA and a frozen tower",
    sentence="In RL, adapters of rank 16 and even of rank 1 learn as well as all weights do, and "
    "the vision tower need not be trained.",
    source="[LoRA Without Regret](https://thinkingmachines.ai/blog/lora/)",
    arms=ARMS,
    run=run,
    hypotheses=(
        no_worse(LORA, "LoRA of rank 16"),
        no_worse(RANK_1, "LoRA of rank 1"),
        no_worse(FROZEN, "a frozen tower"),
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
