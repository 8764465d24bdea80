"""Defaults that depend on the command, on adapters and on the engine."""

from __future__ import annotations

import pytest

from mmr1.config.file import config_from, redacted

MODEL = {"path": "m"}


@pytest.mark.parametrize(
    ("command", "full", "schedule"),
    [
        ("train", 1e-6, "constant"),
        ("sft", 2e-5, "linear"),
    ],
)
def test_the_learning_rate_is_the_commands(command, full, schedule):
    for lora, rate in ((None, full), ({}, 10 * full), ({"path": "a"}, 10 * full)):
        optimizer = config_from({"model": {**MODEL, "lora": lora}}, command=command).optimizer
        assert (optimizer.lr, optimizer.scheduler.type) == (pytest.approx(rate), schedule)


@pytest.mark.parametrize("command", ["train", "sft"])
def test_what_is_written_comes_before(command):
    given = {"lr": 3e-4, "scheduler": {"type": "cosine", "min_lr": 1e-5}}
    config = config_from({"model": {**MODEL, "lora": {}}, "optimizer": given}, command=command)
    assert (config.optimizer.lr, config.optimizer.scheduler.type) == (3e-4, "cosine")
    assert config_from(redacted(config), command=command) == config
    other = config_from({"model": MODEL}, ["optimizer.lr=2e-3"], command)
    assert other.optimizer.lr == 2e-3


def test_a_warm_up_alone_keeps_the_commands_schedule():
    for command, schedule in (("train", "constant"), ("sft", "linear")):
        values = {"model": MODEL, "optimizer": {"scheduler": {"warmup_steps": 3}}}
        scheduler = config_from(values, command=command).optimizer.scheduler
        assert (scheduler.type, scheduler.warmup_steps) == (schedule, 3)


@pytest.mark.parametrize(
    ("overrides", "weights"),
    [
        ([], "token"),  # vLLM's log-probs are not the trainer's, whatever its data type
        (["rollout.engine.colocate=true"], "token"),
        (["rollout.engine=hf"], "none"),  # it samples from the very weights
        (["rollout.engine=hf", "rollout.max_off_policy_steps=1", "resources.engines=2"], "token"),
        (["rollout.engine=hf", "algorithm.filter_groups=replay"], "token"),
        (
            [
                "rollout.engine=hf",
                "algorithm=dapo",
                "algorithm.filter_groups={gen_batch_size: 16, keep_surplus: true}",
            ],
            "token",
        ),
        (["algorithm.rollout_correction.importance_sampling=null"], "none"),
        (["algorithm.rollout_correction.importance_sampling.level=sequence"], "sequence"),
    ],
)
def test_losses_are_weighted_wherever_another_engine_samples(overrides, weights):
    assert config_from({"model": MODEL}, overrides).resolved_rollout_is == weights


def test_the_loss_is_the_mean_over_tokens():
    """As in TRL (``loss_type=dapo``), verl and EasyR1; GSPO and SAPO are means of completions."""
    for name, mode in (
        ("grpo", "token-mean"),
        ("rloo", "token-mean"),
        ("gspo", "seq-mean-token-mean"),
        ("sapo", "seq-mean-token-mean"),
        ("dr_grpo", "seq-mean-token-sum-norm"),
    ):
        config = config_from({"model": MODEL}, [f"algorithm={name}"])
        assert config.algorithm.loss.aggregation == mode
