"""Settings that would do nothing cannot be written, by whatever name."""

from __future__ import annotations

import pytest

from mmr1.config.file import config_from

CASES = [
    ("filter bounds without a filter", ["algorithm.filter_groups.between=[0.2,1]"], "train"),
    ("filter bounds without a filter", ["algorithm.filter_groups.range.between=[0.2,1]"], "train"),
    ("filter bounds without a filter", ["algorithm.filter_low=0.2"], "train"),
    ("filter metric without dynamic sampling", ["algorithm.filter_key=math"], "train"),
    (
        "filter metric without dynamic sampling",
        ["algorithm.filter_groups=null", "algorithm.filter_groups.range.between=[0,1]"],
        "train",
    ),
    ("draws per step without dynamic sampling", ["algorithm.max_num_gen_batches=3"], "train"),
    ("kl estimator without kl", ["algorithm.kl.estimator=k2"], "train"),
    ("kl estimator without kl", ["algorithm.kl_estimator=k2"], "train"),
    ("kl as a penalty without kl", ["algorithm.kl.type=reward"], "train"),
    ("kl as a penalty without kl", ["algorithm.use_kl_loss=false"], "train"),
    ("kl of coefficient 0", ["algorithm.kl.coef=0"], "train"),
    (
        "kl rate without target",
        ["algorithm.kl.coef=0.1", "algorithm.kl.adaptation_rate=0.5"],
        "train",
    ),
    ("kl target without coefficient", ["algorithm.kl.target=0.1"], "train"),
    ("divergence beta without kl, or with an estimator", ["algorithm.kl.jsd_beta=0.5"], "train"),
    (
        "divergence beta without kl, or with an estimator",
        ["algorithm.kl.coef=0.1", "algorithm.kl.jsd_beta=0.5"],
        "train",
    ),
    (
        "bias correction with the exact KL, or of a penalty",
        [
            "algorithm.kl.type=full",
            "algorithm.kl.coef=0.1",
            "algorithm.kl.use_bias_correction_kl=true",
        ],
        "train",
    ),
    (
        "bias correction with the exact KL, or of a penalty",
        [
            "algorithm.kl.type=reward",
            "algorithm.kl.coef=0.1",
            "algorithm.kl.use_bias_correction_kl=true",
        ],
        "train",
    ),
    ("reference without kl", ["algorithm.kl.reference.path=x"], "train"),
    ("reference without kl", ["algorithm.reference.path=x"], "train"),
    (
        "moved reference with a path",
        [
            "algorithm.kl.coef=0.1",
            "algorithm.kl.reference.type=moving",
            "algorithm.kl.reference.sync_steps=5",
            "algorithm.kl.reference.path=x",
        ],
        "train",
    ),
    (
        "mixture without a moved reference",
        ["algorithm.kl.coef=0.1", "algorithm.kl.reference.mixup_alpha=0.5"],
        "train",
    ),
    (
        "exact KL with an offloaded or served reference",
        ["algorithm.kl.type=full", "algorithm.kl.coef=0.1", "algorithm.kl.reference.offload=true"],
        "train",
    ),
    (
        "exact KL with an offloaded or served reference",
        [
            "algorithm.kl.type=full",
            "algorithm.kl.coef=0.1",
            "algorithm.kl.reference.type=server",
            "algorithm.kl.reference.url=http://a",
        ],
        "train",
    ),
    (
        "entropy rate without target",
        ["algorithm.entropy.coef=0.1", "algorithm.entropy.adaptation_rate=0.5"],
        "train",
    ),
    ("entropy target without coefficient", ["algorithm.entropy.target=1"], "train"),
    (
        "threshold of weights that are off",
        [
            "algorithm.rollout_correction.importance_sampling=null",
            "algorithm.rollout_correction.importance_sampling_threshold=5",
        ],
        "train",
    ),
    ("threshold of weights that are off", ["algorithm.rollout_correction.threshold=5"], "train"),
    (
        "level of a rejection without threshold",
        ["algorithm.rollout_correction.rejection_sampling.level=sequence"],
        "train",
    ),
    (
        "top entropy under kl_cov, clip_cov, gspo",
        [
            "algorithm.name=kl_cov",
            "algorithm.loss.top_entropy_quantile=0.2",
            "algorithm.ppo_epochs=2",
        ],
        "train",
    ),
    (
        "top entropy under kl_cov, clip_cov, gspo",
        ["algorithm.name=clip_cov", "algorithm.loss.top_entropy_quantile=0.2"],
        "train",
    ),
    (
        "top entropy under kl_cov, clip_cov, gspo",
        ["algorithm.name=gspo", "algorithm.loss.top_entropy_quantile=0.2"],
        "train",
    ),
    (
        "top entropy without a policy loss",
        ["algorithm.loss.top_entropy_quantile=0.2"],
        "sft",
    ),
    (
        "tensor parallel with transformers",
        ["rollout.engine=hf", "rollout.engine.tensor_parallel_size=2"],
        "train",
    ),
    (
        "gpu memory share with transformers",
        ["rollout.engine=hf", "rollout.engine.gpu_memory_utilization=0.3"],
        "train",
    ),
    (
        "vLLM's further arguments with transformers",
        ["rollout.engine=hf", "rollout.engine.engine_kwargs.max_num_seqs=8"],
        "train",
    ),
    ("ptx batch without ptx", ["algorithm.ptx.batch_size=8"], "train"),
    (
        "ptx data without coefficient, coefficient without data",
        ["algorithm.ptx.coef=0", "algorithm.ptx.data=x"],
        "train",
    ),
    ("ptx data without coefficient, coefficient without data", ["algorithm.ptx.coef=1"], "train"),
    (
        "baseline momentum with a mean",
        [
            "algorithm.name=reinforce",
            "algorithm.advantage.baseline=mean",
            "algorithm.advantage.momentum=0.5",
        ],
        "train",
    ),
    (
        "replay with dynamic sampling",
        ["algorithm.filter_groups.type=replay", "algorithm.filter_groups.gen_batch_size=2"],
        "train",
    ),
    (
        "replay with dynamic sampling",
        ["algorithm.filter_groups.type=resample", "algorithm.filter_groups.capacity=8"],
        "train",
    ),
    ("colocate without vLLM", ["rollout.engine=hf", "rollout.engine.colocate=true"], "train"),
    (
        "colocate without vLLM",
        ["rollout.engine=hf", "rollout.engine.offload_trainer=true"],
        "train",
    ),
    ("colocate without vLLM", ["resources.colocate=true"], "train"),
    (
        "colocate with tensor parallel, or sampling ahead",
        ["rollout.engine.colocate=true", "rollout.engine.tensor_parallel_size=2"],
        "train",
    ),
    (
        "colocate with tensor parallel, or sampling ahead",
        ["rollout.engine.colocate=true", "rollout.max_off_policy_steps=1"],
        "train",
    ),
    ("offload while sampling without colocate", ["rollout.engine.offload_trainer=true"], "train"),
    (
        "sampling ahead with transformers",
        ["rollout.engine=hf", "rollout.max_off_policy_steps=1"],
        "train",
    ),
    (
        "another data type with transformers",
        ["rollout.engine=hf", "rollout.engine.dtype=float32"],
        "train",
    ),
    ("critic with grpo", ["algorithm.advantage.critic.lr=1e-4"], "train"),
    ("critic with grpo", ["algorithm.critic.lr=1e-4"], "train"),
    ("ppo without a critic", ["algorithm.name=ppo", "algorithm.advantage.critic=null"], "train"),
    ("dual clip with cispo", ["algorithm.name=cispo", "algorithm.loss.clip_ratio_dual=3"], "train"),
    (
        "clips under importance weights",
        [
            "algorithm.name=rloo",
            "algorithm.loss.type=reinforce",
            "algorithm.loss.importance=token",
            "algorithm.loss.clip_ratio_high=0.3",
        ],
        "train",
    ),
    ("sapo's temperature with grpo", ["algorithm.loss.tau_pos=2"], "train"),
    ("discount with grpo", ["algorithm.advantage.gamma=0.9"], "train"),
    ("step rewards with grpo", ["algorithm.advantage.step_rewards=a.py:f"], "train"),
    ("process_grpo without step rewards", ["algorithm.name=process_grpo"], "train"),
    ("distillation without a teacher", ["algorithm.name=on_policy_distillation"], "train"),
    (
        "reward scaling with gdpo, with process",
        ["algorithm.advantage.type=gdpo", "algorithm.advantage.normalize_rewards=true"],
        "train",
    ),
    (
        "reward scaling with gdpo, with process",
        [
            "algorithm.name=process_grpo",
            "algorithm.advantage.step_rewards=a.py:f",
            "algorithm.advantage.reward_clip_range=[0,1]",
        ],
        "train",
    ),
    (
        "mean over tokens of a sequence's ratio",
        ["algorithm.loss.type=sequence_ppo", "algorithm.loss.agg_mode=token-mean"],
        "train",
    ),
    ("rollout, rewards, algorithm with mmr1 sft", ["rollout.n=4"], "sft"),
    ("rollout, rewards, algorithm with mmr1 sft", ["scoring.workers=4"], "sft"),
    ("rollout, rewards, algorithm with mmr1 sft", ["algorithm=dapo"], "sft"),
    (
        "warm-up steps and share",
        ["optimizer.scheduler.warmup_steps=5", "optimizer.scheduler.warmup_ratio=0.1"],
        "train",
    ),
    (
        "min_lr with a constant schedule",
        ["optimizer.scheduler=constant", "optimizer.scheduler.min_lr=1e-8"],
        "train",
    ),
    ("project, tags without a tracker", ["trainer.tracking.project_name=x"], "train"),
    ("project, tags without a tracker", ["trainer.tracking.tags=[a]"], "train"),
    ("project, tags without a tracker", ["trainer.tracking.report_to=[]"], "train"),
    (
        "checkpoint limit, best metric without checkpoints",
        ["trainer.checkpoints.save_total_limit=5"],
        "train",
    ),
    (
        "checkpoint limit, best metric without checkpoints",
        ["trainer.checkpoints.metric_for_best_model=reward/mean"],
        "train",
    ),
    ("validation steps without data", ["trainer.validation.steps=5"], "train"),
    (
        "best metric of a validation there is not",
        [
            "trainer.checkpoints.save_steps=5",
            "trainer.checkpoints.metric_for_best_model=eval/greedy",
        ],
        "train",
    ),
    (
        "evaluation temperature, best_of without samples",
        ["eval.sampled=null", "eval.temperature=0.5"],
        "train",
    ),
    ("evaluation temperature, best_of without samples", ["eval.best_of=math"], "train"),
    (
        "environment options with tools, tools with a class",
        ["environment.tools=[zoom]", "environment.options.a=1"],
        "train",
    ),
    ("environment options with tools, tools with a class", ["environment.type=tools"], "train"),
    ("columns with another format", ["data.format=verl", "data.prompt_key=q"], "train"),
    ("columns with another format", ["data.format.name=verl", "data.format.prompt_key=q"], "train"),
    (
        "sandbox of a built-in, timeout of a built-in",
        ["rewards.math.sandbox=null"],
        "train",
    ),
    (
        "sandbox of a built-in, timeout of a built-in",
        ["rewards.math.timeout_s=3"],
        "train",
    ),
    ("rank of adapters that exist", ["model.lora.path=x", "model.lora.rank=4"], "train"),
    ("prompt longer than the engine's window", ["rollout.max_model_len=100"], "train"),
    ("temperature 0", ["rollout.temperature=0"], "train"),
    ("engine argument that mmr1 sets", ["rollout.engine.engine_kwargs.max_model_len=1"], "train"),
    ("micro-batch cost with a wrong sign", ["trainer.vision_token_cost=-1"], "train"),
    ("ranks beside auto", ["resources=auto", "resources.ranks=2"], "train"),
    ("evaluation with sft", ["eval.limit=3"], "sft"),
    (
        "schedule's horizon of a constant schedule",
        ["optimizer.scheduler=constant", "optimizer.scheduler.steps=9"],
        "train",
    ),
    (
        "aggregation scope of a critic",
        ["algorithm.name=ppo", "algorithm.advantage.critic.agg_scope=rollout"],
        "train",
    ),
    (
        "bootstrapping without a critic",
        ["algorithm.advantage.critic.bootstrap_truncated=true"],
        "train",
    ),
    (
        "best checkpoint with sft",
        ["trainer.checkpoints.save_steps=2", "trainer.checkpoints.metric_for_best_model=eval/loss"],
        "sft",
    ),
    (
        "importance weights by anything but per_decision with process supervision",
        [
            "algorithm=process_grpo",
            "algorithm.advantage.step_rewards=a.py:f",
            "algorithm.loss=reinforce",
            "algorithm.loss.importance=token",
        ],
        "train",
    ),
]


@pytest.mark.parametrize(("what", "overrides", "command"), CASES)
def test_an_idle_setting_is_refused(what, overrides, command):
    with pytest.raises(ValueError, match=r".") as error:
        config_from({"model": {"path": "m"}}, overrides, command)
    named = [override.partition("=")[0].split(".")[0] for override in overrides]
    assert any(name in str(error.value) for name in named), what
    assert "Extra inputs" not in str(error.value)


def test_the_same_settings_are_taken_where_they_do_something():
    """So no case above is refused for another reason than it names."""
    taken = [
        [
            "algorithm.filter_groups.range.metric=math",
            "algorithm.filter_groups.range.between=[0,1]",
        ],
        ["algorithm.kl.coef=0.1", "algorithm.kl.estimator=k2", "algorithm.kl.target=0.1"],
        ["algorithm.kl.type=full", "algorithm.kl.coef=0.1", "algorithm.kl.jsd_beta=0.5"],
        ["algorithm.entropy.coef=0.1", "algorithm.entropy.target=1"],
        ["rollout.engine.tensor_parallel_size=2", "rollout.max_off_policy_steps=1"],
        ["rollout.engine=hf", "rollout.max_off_policy_steps=1", "resources.engines=2"],
        ["algorithm=ppo", "algorithm.advantage.critic.lr=1e-4"],
        ["algorithm.ptx.data=x", "algorithm.ptx.batch_size=8"],
        ["trainer.validation.data=x", "trainer.validation.steps=5"],
        ["trainer.tracking.report_to=[wandb]", "trainer.tracking.tags=[a]"],
        ["model.lora.path=x", "model.lora.dropout=0.1"],
        ["environment.tools=[zoom]", "environment.max_turns=2"],
    ]
    for overrides in taken:
        config_from({"model": {"path": "m"}}, overrides)
