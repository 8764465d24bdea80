"""Declarations of the commands ``dpo``, ``iterative-grpo`` and ``rm``."""

from __future__ import annotations

from mmr1.config import Config
from mmr1.config.commands import Command
from mmr1.section import ALL, Need
from mmr1_contrib.offline.sections import DpoConfig, IterativeGrpoConfig, RoundsConfig

LEARNING_RATE = 1e-6  # TRL's DPOConfig and GRPOConfig


def rounds_of(config: Config) -> RoundsConfig | None:
    """Return the section ``dpo.rounds``; None if preferences come from the records."""
    return config.section(DpoConfig).rounds


def _has_rounds(config: Config) -> bool:
    return rounds_of(config) is not None


def _rounds_exceed_steps(config: Config) -> bool:
    rounds = rounds_of(config)
    return rounds is not None and rounds.count > config.trainer.steps


def _pairs_unread(config: Config) -> bool:
    rounds = rounds_of(config)
    pairs = config.section(DpoConfig).loss.paired
    return rounds is not None and not pairs and rounds.pairs_per_prompt != 4


def _ranking_function_missing(config: Config) -> bool:
    ranked_by = config.section(IterativeGrpoConfig).ranked_by
    return ranked_by is not None and ranked_by not in config.rewards


DPO = Command(
    "dpo",
    "Learn from preferences (DPO, IPO, SimPO, ORPO, KTO, ...), of records or in rounds.",
    "offline",
    learning_rate=LEARNING_RATE,
    reads=("dpo",),
    reads_if_sampling=("rollout", "rewards", "scoring", "eval"),
    samples=_has_rounds,
    steps="mmr1_contrib.offline.dpo:steps_of_dpo",
    needs=(
        Need(
            ("dpo.rounds.count", "trainer.max_steps"),
            _rounds_exceed_steps,
            "rounds share the steps, and a round would have none; lower the first or raise the "
            "second",
            ("dpo.rounds.count=200",),
            commands=ALL,
            command="dpo",
        ),
        Need(
            ("rollout.n", "dpo.rounds.count"),
            lambda c: _has_rounds(c) and c.rollout.n < 2,
            "a pair needs two completions of a prompt; set rollout.n to 2 or more",
            ("dpo.rounds.count=2", "rollout.n=1"),
            commands=ALL,
            command="dpo",
        ),
        Need(
            ("model.lora.merge", "dpo.rounds.count"),
            lambda c: c.model.sync_adapters_only and _has_rounds(c),
            "rounds hand on merged weights; leave model.lora.merge out",
            ("dpo.rounds.count=2", "model.lora.merge=false"),
            commands=ALL,
            command="dpo",
        ),
        Need(
            ("dpo.rounds.count", "trainer.total_epochs"),
            lambda c: _has_rounds(c) and c.trainer.total_epochs is not None,
            "a round learns from what it samples, not from passes over the data; set "
            "trainer.max_steps",
            ("dpo.rounds.count=2", "trainer.total_epochs=1", "trainer.max_steps=9"),
            commands=ALL,
            command="dpo",
        ),
        Need(
            ("rollout.max_off_policy_steps", "dpo.rounds.count"),
            lambda c: _has_rounds(c) and c.rollout.max_off_policy_steps > 0,
            "a round samples before it trains, and nothing ahead; leave the first out",
            ("dpo.rounds.count=2", "rollout.max_off_policy_steps=1"),
            commands=ALL,
            command="dpo",
        ),
        Need(
            ("eval.vision_use",),
            lambda c: c.eval.vision_use,
            "rounds do not measure it, as mmr1 train and eval do; leave it out",
            ("dpo.rounds.count=2", "eval.vision_use=true"),
            commands=ALL,
            command="dpo",
        ),
        Need(
            ("rollout.views",),
            lambda c: c.rollout.views is not None,
            "rounds do not sample under other views; leave it out",
            ("dpo.rounds.count=2", "rollout.views.view=noise", "rollout.views.strength=0.5"),
            commands=ALL,
            command="dpo",
        ),
        Need(
            ("dpo.rounds.pairs_per_prompt",),
            _pairs_unread,
            "KTO learns from all completions",
            ("dpo.rounds.count=2", "dpo.rounds.pairs_per_prompt=2", "dpo.loss=kto"),
            warns=True,
            commands=ALL,
            command="dpo",
        ),
    ),
)
ITERATIVE_GRPO = Command(
    "iterative-grpo",
    "Iterative GRPO: rounds of the policy, between which the reward model learns too.",
    "policy",
    learning_rate=LEARNING_RATE,
    reads=("rollout", "rewards", "scoring", "algorithm", "iterative_grpo", "eval"),
    may_read=("environment",),
    run="mmr1_contrib.offline.iterative_grpo:run_iterative_grpo",
    needs=(
        Need(
            ("iterative_grpo.ranked_by",),
            _ranking_function_missing,
            "it names a reward that is not in rewards; add it there, or name another",
            ("iterative_grpo.ranked_by=nope",),
            command="iterative-grpo",
        ),
    ),
)
RM = Command(
    "rm",
    "Train a reward model on preference pairs, on rankings, or on labelled steps.",
    "offline",
    learning_rate=1e-4,  # TRL's RewardConfig
    reads=("rm",),
    samples=lambda config: False,
    evaluates=True,
    steps="mmr1_contrib.offline.reward_model:reward_model_steps",
)
