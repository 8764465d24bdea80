"""Algorithms of the policy gradient family with equally many completions."""

from __future__ import annotations

from pathlib import Path

from scripts.claims.claim import Claim, Hypothesis, Measured, Trial
from scripts.claims.training import trained

RL = Path(__file__).with_name("rl.yaml")
CRITIC = (
    *("algorithm.critic.lr=1e-3", "algorithm.critic.ppo_epochs=4"),
    *("algorithm.critic.cliprange_value=null", "algorithm.critic.lam=0.8"),
    "algorithm.critic.warmup_steps=8",
)
FEWER = "trainer.max_steps=36"
"""Each step has 8 greedy completions more."""


def named(name: str, *others: str) -> tuple[str, ...]:
    return (f"algorithm.name={name}", *others)


ARMS = {
    "GRPO": named("grpo"),
    "RLOO": named("rloo"),
    "REINFORCE++": named("reinforce_pp"),
    "REINFORCE++-baseline": named("reinforce_pp_baseline"),
    "ReMax": named("remax", FEWER),
    "GPG": named("gpg"),
    "PPO": named("ppo", *CRITIC),
}


def run(trial: Trial) -> Measured:
    return trained(trial, RL, ARMS[trial.arm])


def learns_faster(more: str, less: str) -> Hypothesis:
    text = f"The accuracy of all rollouts is higher with {more} than with {less}."
    return Hypothesis(text, "area", more, less, 0.03)


CLAIM = Claim(
    title="Algorithms at equal tokens",
    sentence="RLOO and ReMax learn faster than PPO; GPG and the baseline form of REINFORCE++ learn "
    "faster than GRPO.",
    source="[2402.14740](https://arxiv.org/abs/2402.14740), "
    "[2310.10505](https://arxiv.org/abs/2310.10505), "
    "[2504.02546](https://arxiv.org/abs/2504.02546), "
    "[2501.03262](https://arxiv.org/abs/2501.03262)",
    arms=ARMS,
    run=run,
    hypotheses=(
        learns_faster("RLOO", "PPO"),
        learns_faster("ReMax", "PPO"),
        learns_faster("GPG", "GRPO"),
        learns_faster("REINFORCE++-baseline", "GRPO"),
    ),
    shown={
        "area": "accuracy of all rollouts",
        "greedy": "accuracy, greedy",
        "sampled": "accuracy, sampled",
        "sampled_format": "right form, sampled",
        "entropy": "entropy at the end",
        "tokens": "completion tokens",
    },
    curve="accuracy of the rollouts",
)
