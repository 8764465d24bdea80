"""A key that other keys make idle is named; one that counts is not."""

from __future__ import annotations

from typing import Any

import pytest

from mmr1_contrib.migrate.source import migrate
from mmr1_contrib.migrate.sources import SOURCES

ACTOR = "actor_rollout_ref.actor"
EASYR1 = {"worker.actor.model.model_path": "m", "worker.rollout.n": 4}
VERL = {"actor_rollout_ref.model.path": "m", "actor_rollout_ref.rollout.n": 4}
TRL = {"model_name_or_path": "m", "num_processes": 4}
OPENRLHF = {"actor.model_name_or_path": "m", "rollout.n_samples_per_prompt": 3}


@pytest.mark.parametrize(
    ("title", "base", "switch", "on", "off", "idle"),
    [
        ("EasyR1", EASYR1, "algorithm.disable_kl", False, True, {"algorithm.kl_coef": 0.01}),
        ("EasyR1", EASYR1, "algorithm.adv_estimator", "gae", "grpo",
         {"worker.critic.optim.lr": 3e-5, "algorithm.lam": 0.95}),
        ("EasyR1", EASYR1, "worker.actor.model.lora.rank", 8, 0,
         {"worker.actor.model.lora.alpha": 16}),
        ("verl", VERL, f"{ACTOR}.use_kl_loss", True, False, {f"{ACTOR}.kl_loss_coef": 0.02}),
        ("verl", VERL, "algorithm.filter_groups.enable", True, False,
         {"data.gen_batch_size": 4096}),
        ("TRL 1.16 GRPOConfig", TRL, "beta", 0.1, 0.0, {"use_bias_correction_kl": False}),
        ("TRL 1.16 GRPOConfig", TRL, "use_peft", True, False, {"lora_r": 8}),
        ("OpenRLHF 0.11", OPENRLHF, "algo.dynamic_filtering_enable", True, False,
         {"algo.dynamic_filtering_range": [0.1, 0.9]}),
    ],
)  # fmt: skip
def test_keys_that_are_idle_are_named(
    title: str, base: dict[str, Any], switch: str, on: Any, off: Any, idle: dict[str, Any]
):
    source = next(source for source in SOURCES if source.title == title)

    def named(value: Any) -> list[str]:
        notes = migrate(source, {**base, **idle, switch: value}).unneeded
        return [key for key in idle for note in notes if f"{key}=" in note and "effect" in note]

    assert named(off) == list(idle)
    assert named(on) == []
