"""verl's keys: their defaults, what they are called here, and those that are not needed.

Keys and defaults are those of verl 0.9.1 (``verl/trainer/config/_generated_ppo_trainer.yaml``), and
the keys that 0.7 and 0.8 had besides.
"""

from __future__ import annotations

from mmr1_contrib.migrate.migration import Tree, because

ACTOR = "actor_rollout_ref.actor"
MODEL = "actor_rollout_ref.model"
ROLLOUT = "actor_rollout_ref.rollout"
CORRECTION = "algorithm.rollout_correction"
_WEIGHTS = "algorithm.rollout_correction.importance_sampling"
_MASKS = "algorithm.rollout_correction.rejection_sampling"
DISTILLATION = "distillation.distillation_loss"

DEFAULTS: Tree = {
    "data.train_files": "~/data/rlhf/gsm8k/train.parquet",
    "data.val_files": "~/data/rlhf/gsm8k/test.parquet",
    "data.prompt_key": "prompt",
    "data.image_key": "images",
    "data.video_key": "videos",
    "data.reward_fn_key": "data_source",
    "data.max_prompt_length": 512,
    "data.max_response_length": 512,
    "data.train_batch_size": 1024,
    "data.shuffle": True,
    "data.truncation": "error",
    f"{MODEL}.path": "~/models/deepseek-llm-7b-chat",
    f"{MODEL}.enable_gradient_checkpointing": True,
    f"{MODEL}.lora_rank": 0,
    f"{MODEL}.lora_alpha": 16,
    f"{MODEL}.target_modules": "all-linear",
    f"{ACTOR}.freeze_vision_tower": False,
    f"{ACTOR}.ppo_mini_batch_size": 256,
    f"{ACTOR}.ppo_epochs": 1,
    f"{ACTOR}.shuffle": False,
    f"{ACTOR}.clip_ratio": 0.2,
    f"{ACTOR}.clip_ratio_low": 0.2,
    f"{ACTOR}.clip_ratio_high": 0.2,
    f"{ACTOR}.clip_ratio_c": 3.0,
    f"{ACTOR}.tau_pos": 1.0,
    f"{ACTOR}.tau_neg": 1.05,
    f"{ACTOR}.policy_loss.loss_mode": "vanilla",
    f"{ACTOR}.policy_loss.clip_cov_ratio": 2e-4,
    f"{ACTOR}.policy_loss.clip_cov_lb": 1.0,
    f"{ACTOR}.policy_loss.clip_cov_ub": 5.0,
    f"{ACTOR}.policy_loss.kl_cov_ratio": 2e-4,
    f"{ACTOR}.policy_loss.ppo_kl_coef": 0.1,
    f"{ACTOR}.loss_agg_mode": "token-mean",
    f"{ACTOR}.entropy_coeff": 0.0,
    f"{ACTOR}.use_kl_loss": False,
    f"{ACTOR}.kl_loss_coef": 0.001,
    f"{ACTOR}.kl_loss_type": "low_var_kl",
    f"{ACTOR}.grad_clip": 1.0,
    f"{ACTOR}.optim.lr": 1e-6,
    f"{ACTOR}.optim.betas": [0.9, 0.999],
    f"{ACTOR}.optim.weight_decay": 0.01,
    f"{ACTOR}.optim.lr_warmup_steps": -1,
    f"{ACTOR}.optim.lr_warmup_steps_ratio": 0.0,
    f"{ACTOR}.optim.min_lr_ratio": 0.0,
    f"{ACTOR}.optim.num_cycles": 0.5,
    f"{ACTOR}.optim.lr_scheduler_type": "constant",
    f"{ROLLOUT}.n": 1,
    f"{ROLLOUT}.temperature": 1.0,
    f"{ROLLOUT}.top_p": 1.0,
    f"{ROLLOUT}.top_k": -1,
    f"{ROLLOUT}.gpu_memory_utilization": 0.5,
    f"{ROLLOUT}.tensor_model_parallel_size": 2,
    f"{ROLLOUT}.val_kwargs.n": 1,
    f"{ROLLOUT}.val_kwargs.temperature": 0.0,
    f"{ROLLOUT}.val_kwargs.top_p": 1.0,
    f"{ROLLOUT}.val_kwargs.top_k": -1,
    f"{ROLLOUT}.val_kwargs.do_sample": False,
    "algorithm.adv_estimator": "gae",
    "algorithm.norm_adv_by_std_in_grpo": True,
    "algorithm.gamma": 1.0,
    "algorithm.lam": 1.0,
    "algorithm.use_kl_in_reward": False,
    "algorithm.kl_penalty": "kl",
    "algorithm.kl_ctrl.type": "fixed",
    "algorithm.kl_ctrl.kl_coef": 0.001,
    "algorithm.kl_ctrl.horizon": 10000.0,
    "algorithm.kl_ctrl.target_kl": 0.1,
    "algorithm.filter_groups.enable": False,
    "algorithm.filter_groups.metric": "reward",
    "algorithm.filter_groups.max_num_gen_batches": 0,
    f"{CORRECTION}.rollout_is_batch_normalize": False,
    f"{CORRECTION}.bypass_mode": False,
    f"{CORRECTION}.loss_type": "ppo_clip",
    "distillation.enabled": False,
    f"{DISTILLATION}.loss_mode": "k3",
    f"{DISTILLATION}.use_task_rewards": True,
    f"{DISTILLATION}.use_policy_gradient": False,
    f"{DISTILLATION}.clip_ratio_low": 0.2,
    f"{DISTILLATION}.clip_ratio_high": 0.2,
    "critic.optim.lr": 1e-5,
    "critic.optim.weight_decay": 0.01,
    "critic.cliprange_value": 0.5,
    "critic.grad_clip": 1.0,
    "reward.custom_reward_function.name": "compute_score",
    "reward.reward_manager.name": "naive",
    "trainer.total_epochs": 30,
    "trainer.critic_warmup": 0,
    "trainer.project_name": "verl_examples",
    "trainer.experiment_name": "gsm8k",
    "trainer.logger": ["console", "wandb"],
    "trainer.save_freq": -1,
    "trainer.test_freq": -1,
    "trainer.val_before_train": True,
}

# Names of verl 0.7 and 0.8, and two of today that say the same.
OLDER = {
    f"{ACTOR}.optim.clip_grad": f"{ACTOR}.grad_clip",
    f"{ACTOR}.optim.warmup_style": f"{ACTOR}.optim.lr_scheduler_type",
    f"{ACTOR}.optim.lr_decay_style": f"{ACTOR}.optim.lr_scheduler_type",
    f"{ACTOR}.policy_loss.tau_pos": f"{ACTOR}.tau_pos",
    f"{ACTOR}.policy_loss.tau_neg": f"{ACTOR}.tau_neg",
    f"{ROLLOUT}.prompt_length": "data.max_prompt_length",
    f"{ROLLOUT}.response_length": "data.max_response_length",
    f"{MODEL}.lora.target_modules": f"{MODEL}.target_modules",
    f"{MODEL}.lora.exclude_modules": f"{MODEL}.exclude_modules",
    f"{MODEL}.lora.adapter_path": f"{MODEL}.lora_adapter_path",
    "critic.optim.clip_grad": "critic.grad_clip",
    "custom_reward_function.path": "reward.custom_reward_function.path",
    "custom_reward_function.name": "reward.custom_reward_function.name",
    "reward_model.reward_manager": "reward.reward_manager.name",
    "reward_manager.name": "reward.reward_manager.name",
    "reward_model.enable": "reward.reward_model.enable",
    "reward_model.model.path": "reward.reward_model.model_path",
    "reward_model.reward_kwargs.max_resp_len": "reward.reward_kwargs.max_resp_len",
    **{
        f"{section}.{name}": f"reward.reward_kwargs.overlong_buffer_cfg.{name}"
        for section in (
            "reward_model.reward_kwargs.overlong_buffer_cfg",
            "reward_model.overlong_buffer",  # recipe/dapo of 0.6
        )
        for name in ("enable", "len", "penalty_factor", "log")
    },
}

# Their key -> our key, where the value stays the same.
RENAMED = {
    "data.seed": "seed",
    f"{MODEL}.path": "model.path",
    f"{MODEL}.enable_gradient_checkpointing": "model.gradient_checkpointing",
    f"{ACTOR}.freeze_vision_tower": "model.freeze_vision_tower",
    f"{ACTOR}.ppo_epochs": "algorithm.ppo_epochs",
    f"{ACTOR}.grad_clip": "optimizer.max_grad_norm",
    f"{ACTOR}.optim.lr": "optimizer.lr",
    f"{ACTOR}.optim.betas": "optimizer.betas",
    f"{ACTOR}.optim.weight_decay": "optimizer.weight_decay",
    f"{ROLLOUT}.n": "rollout.n",
    f"{ROLLOUT}.full_determinism": "full_determinism",
    f"{ROLLOUT}.temperature": "rollout.temperature",
    f"{ROLLOUT}.top_p": "rollout.top_p",
    "reward.num_workers": "scoring.workers",
}

TRANSLATED: dict[str, tuple[str, dict[str, str]]] = {
    f"{ACTOR}.optim.lr_scheduler_type": (
        "optimizer.scheduler.type",
        {"constant": "constant", "cosine": "cosine", "linear": "linear"},
    ),
}

# Advantages of the group, which go with any loss; None: that of the loss's own algorithm.
ESTIMATORS = {
    "grpo": None, "grpo_vectorized": None, "rloo": "rloo", "rloo_vectorized": "rloo",
    "grpo_passk": "pass_at_k", "opo": "optimal_baseline", "gdpo": "gdpo",
}  # fmt: skip
OWN_ALGORITHMS = {
    "gae": "ppo", "remax": "remax", "reinforce_plus_plus": "reinforce_pp",
    "reinforce_plus_plus_baseline": "reinforce_pp_baseline", "gpg": "gpg",
}  # fmt: skip
LOSSES = {
    "vanilla": "ppo", "gspo": "gspo", "sapo": "sapo", "cispo": "cispo", "clip_cov": "clip_cov",
    "kl_cov": "kl_cov",
}  # fmt: skip
DTYPES = {"bf16": "bfloat16", "bfloat16": "bfloat16", "fp32": "float32", "float32": "float32"}
KL = {
    "kl": "k1", "k1": "k1", "abs": "absolute", "mse": "k2", "k2": "k2", "low_var_kl": "k3",
    "k3": "k3",
}  # fmt: skip
AGGREGATIONS = (
    "token-mean",
    "token-sum",
    "seq-mean-token-mean",
    "seq-mean-token-sum",
    "seq-mean-token-sum-norm",
)
REJECTIONS = {
    **{name: name for name in ("token", "sequence", "geometric")},  # of 0.6
    "token_k1": "token",
    "seq_sum_k1": "sequence",
    "seq_mean_k1": "geometric",
}
REWARDS_OF_ALL = ("reward", "seq_reward", "seq_final_reward", "score")
"""Metrics of the filter that are the whole reward."""

# Keys that are carried over together with others, and how: for docs/migration.md.
COMPOSED = {
    "async_training.require_batches": "mini-batches that fully_async_policy takes at a time",
    "async_training.trigger_parameter_sync_step": "`data.train_batch_size`: times require_batches "
    "and ppo_mini_batch_size",
    "async_training.staleness_threshold": "`rollout.max_off_policy_steps`, rounded up",
    "async_training.partial_rollout": "`rollout.queue.at_new_weights`: continue or restart",
    "async_training.use_rollout_log_probs": "none: old log-probs are always the trainer's own",
    "async_training.compute_prox_log_prob": "none: old log-probs are always the trainer's own",
    "rollout.total_rollout_steps": "`trainer.max_steps`, divided by `data.train_batch_size`",
    "rollout.total_epochs": "none: `trainer.max_steps` ends the run",
    "rollout.test_freq": "`trainer.validation.steps`",
    "data.train_files": "`data.train`; several files: a mapping to weights",
    "data.val_files": "`trainer.validation.data`, the first of them",
    "data.prompt_key": "rename the column to prompt",
    "data.image_key": "rename the column to images",
    "data.video_key": "rename the column to videos",
    "data.reward_fn_key": "rename the column to data_source",
    "data.max_prompt_length": "`rollout.max_prompt_length`",
    "data.max_response_length": "`rollout.max_response_length`",
    "data.apply_chat_template_kwargs": "`data.chat_template_kwargs`",
    "data.train_batch_size": "`data.train_batch_size`",
    "data.gen_batch_size": "`algorithm.filter_groups.gen_batch_size`",
    "data.shuffle": "none: the data are always shuffled, by seed",
    "data.truncation": "none: prompts that are too long are left out, and listed",
    f"{MODEL}.custom_chat_template": "`data.chat_template`, a file with that text",
    f"{MODEL}.lora_rank": "`model.lora.rank`; 0: no adapters",
    f"{MODEL}.lora_alpha": "`model.lora.alpha`",
    f"{MODEL}.lora.rank": "`model.lora.rank`, before lora_rank",
    f"{MODEL}.lora.alpha": "`model.lora.alpha`, with lora.rank; 32 if not set",
    f"{MODEL}.lora.dropout": "`model.lora.dropout`, with lora.rank",
    f"{MODEL}.target_modules": "`model.lora.target_modules`",
    f"{MODEL}.lora_adapter_path": "`model.lora.path`",
    f"{MODEL}.exclude_modules": "visual: `model.freeze_vision_tower`",
    f"{ACTOR}.ppo_mini_batch_size": "`algorithm.ppo_mini_batch_size`, in prompts too",
    f"{ACTOR}.shuffle": "none: mini-batches keep the order of the rollout",
    f"{ACTOR}.clip_ratio": "the next two, where these are null",
    f"{ACTOR}.clip_ratio_low": "`algorithm.loss.clip_ratio_low`",
    f"{ACTOR}.clip_ratio_high": "`algorithm.loss.clip_ratio_high`",
    f"{ACTOR}.clip_ratio_c": "`algorithm.loss.clip_ratio_dual`; read by vanilla only",
    f"{ACTOR}.tau_pos": "`algorithm.loss.tau_pos`",
    f"{ACTOR}.tau_neg": "`algorithm.loss.tau_neg`",
    f"{ACTOR}.policy_loss.clip_cov_ratio": "`algorithm.loss.ratio`",
    f"{ACTOR}.policy_loss.clip_cov_lb": "none: 1",
    f"{ACTOR}.policy_loss.clip_cov_ub": "none: 5",
    f"{ACTOR}.policy_loss.kl_cov_ratio": "`algorithm.loss.ratio`",
    f"{ACTOR}.policy_loss.ppo_kl_coef": "`algorithm.loss.coef`",
    f"{ACTOR}.policy_loss.loss_mode": "`algorithm.name`, or `algorithm.loss.type` under "
    "another advantage: vanilla is grpo, others keep their name; "
    "gpg is `algorithm.loss.type=reinforce`, with gpg, rloo or remax",
    f"{ACTOR}.loss_agg_mode": "`algorithm.loss.agg_mode`, the same names; gspo and sapo "
    "always have seq-mean-token-mean there",
    f"{ACTOR}.loss_scale_factor": "none: seq-mean-token-sum-norm divides by max_response_length",
    f"{ACTOR}.entropy_coeff": "`algorithm.entropy.coef`; 0: `algorithm.entropy=null`",
    f"{ACTOR}.use_kl_loss": "`algorithm.kl.type=loss`",
    f"{ACTOR}.kl_loss_coef": "`algorithm.kl.coef`",
    f"{ACTOR}.kl_loss_type": "`algorithm.kl.estimator`: kl is k1, mse is k2, low_var_kl is k3, and "
    "k1+ and k3+ have the gradient of k2",
    f"{ACTOR}.optim.lr_warmup_steps": "`optimizer.scheduler.warmup_steps`, times the updates per "
    "rollout",
    f"{ACTOR}.optim.lr_warmup_steps_ratio": "`optimizer.scheduler.warmup_steps`",
    f"{ACTOR}.optim.min_lr_ratio": "`optimizer.scheduler.min_lr`, times lr",
    f"{ACTOR}.optim.min_lr": "`optimizer.scheduler.min_lr`",
    f"{ACTOR}.optim.num_cycles": "none: a cosine falls once",
    f"{ROLLOUT}.top_k": "`rollout.top_k`",
    f"{ROLLOUT}.name": "`rollout.engine.type`: vllm or hf",
    f"{ROLLOUT}.dtype": "`rollout.engine.dtype`: bf16 is bfloat16, fp32 is float32",
    f"{ROLLOUT}.gpu_memory_utilization": "`rollout.engine.gpu_memory_utilization`",
    f"{ROLLOUT}.tensor_model_parallel_size": "`rollout.engine.tensor_parallel_size`",
    f"{ROLLOUT}.max_model_len": "none: `rollout.max_prompt_length` and the length of completions",
    f"{ROLLOUT}.val_kwargs.n": "`eval.sampled.n`, if do_sample",
    f"{ROLLOUT}.val_kwargs.temperature": "`eval.sampled.temperature`, if do_sample",
    f"{ROLLOUT}.val_kwargs.top_p": "`eval.sampled.top_p`, if do_sample",
    f"{ROLLOUT}.val_kwargs.top_k": "`eval.sampled.top_k`, if do_sample",
    f"{ROLLOUT}.val_kwargs.do_sample": "false: `eval.sampled=null`, the greedy completion alone",
    "algorithm.adv_estimator": "`algorithm.name`, or `algorithm.advantage.type`: grpo_passk is "
    "pass_at_k, opo is optimal_baseline",
    "algorithm.norm_adv_by_std_in_grpo": "false: `algorithm.advantage.scale_rewards=none`",
    "algorithm.gamma": "`algorithm.advantage.gamma`, of REINFORCE++ and PPO",
    "algorithm.lam": "`algorithm.advantage.lam`",
    "algorithm.use_kl_in_reward": "`algorithm.kl.type=reward`",
    "algorithm.kl_penalty": "`algorithm.kl.estimator`, with the KL in the reward",
    "algorithm.kl_ctrl.type": "adaptive: `algorithm.kl.target` is set",
    "algorithm.kl_ctrl.kl_coef": "`algorithm.kl.coef`, with the KL in the reward",
    "algorithm.kl_ctrl.horizon": "none: a step changes the coefficient by 0.1 of the relative "
    "error",
    "algorithm.kl_ctrl.target_kl": "`algorithm.kl.target`",
    "algorithm.gdpo_reward_keys": "`rewards`: a function of its own for each",
    "algorithm.gdpo_reward_weights": "`rewards`: the weights",
    "algorithm.filter_groups.enable": "`algorithm.filter_groups.type=resample`",
    "algorithm.filter_groups.metric": "none, if it is the reward; else "
    "`algorithm.filter_groups.range.metric`",
    "algorithm.filter_groups.max_num_gen_batches": "`algorithm.filter_groups.max_num_gen_batches`; "
    "0: no limit",
    f"{CORRECTION}.rollout_is": "`algorithm.rollout_correction.importance_sampling.level`",
    f"{CORRECTION}.rollout_is_threshold": f"`{_WEIGHTS}.threshold`; 2 if not set",
    f"{CORRECTION}.rollout_is_batch_normalize": "none: weights are not divided by their mean",
    f"{CORRECTION}.rollout_rs": "`algorithm.rollout_correction.rejection_sampling.level`: token_k1 "
    "is token, seq_sum_k1 is sequence, seq_mean_k1 is geometric, as 0.6 calls them",
    f"{CORRECTION}.rollout_rs_threshold": f"`{_MASKS}.threshold`",
    f"{CORRECTION}.rollout_rs_threshold_lower": "the inverse of the other, or nothing is rejected",
    f"{CORRECTION}.rollout_token_veto_threshold": "none: no token masks its completion alone",
    f"{CORRECTION}.bypass_mode": "none: old log-probs are always the trainer's own",
    f"{CORRECTION}.loss_type": "none: read in bypass mode only",
    "distillation.enabled": "`algorithm.name=on_policy_distillation`",
    f"{DISTILLATION}.loss_mode": "k1 with use_policy_gradient; others are noted",
    f"{DISTILLATION}.use_task_rewards": "`rewards`: weights above 0",
    f"{DISTILLATION}.use_policy_gradient": "as on_policy_distillation; false is noted",
    f"{DISTILLATION}.clip_ratio_low": "`algorithm.loss.clip_ratio_low`, with distillation",
    f"{DISTILLATION}.clip_ratio_high": "`algorithm.loss.clip_ratio_high`, with distillation",
    "distillation.teacher_models.teacher_model.model_path": "`algorithm.advantage.teacher`",
    "critic.model.path": "`algorithm.advantage.critic.path`",
    "critic.optim.lr": "`algorithm.advantage.critic.lr`",
    "critic.optim.weight_decay": "none: that of the policy",
    "critic.optim.lr_warmup_steps": "none: that of the policy",
    "critic.optim.lr_warmup_steps_ratio": "none: that of the policy",
    "critic.ppo_epochs": "`algorithm.advantage.critic.ppo_epochs`",
    "critic.ppo_mini_batch_size": "none: `algorithm.ppo_mini_batch_size`",
    "critic.cliprange_value": "`algorithm.advantage.critic.cliprange_value`",
    "critic.loss_agg_mode": "none: the critic's loss is the mean over tokens",
    "critic.grad_clip": "none: that of the policy",
    "critic.enable": "`algorithm.name`: there is a critic with ppo",
    "reward.custom_reward_function.path": "`rewards`",
    "reward.custom_reward_function.name": "`rewards`: its function",
    "reward.custom_reward_function.reward_kwargs": "`rewards`: its options",
    "reward.reward_manager.name": "dapo: the reward function overlong",
    "reward.reward_kwargs.max_resp_len": "the option max_length of overlong",
    "reward.reward_kwargs.overlong_buffer_cfg.enable": "the reward function overlong",
    "reward.reward_kwargs.overlong_buffer_cfg.len": "the option buffer of overlong",
    "reward.reward_kwargs.overlong_buffer_cfg.penalty_factor": "the weight of overlong",
    "reward.reward_kwargs.overlong_buffer_cfg.log": "none: its values are always logged",
    "reward.reward_model.enable": "none: see below",
    "reward.reward_model.model_path": "none: a reward function that asks that model, by URL or "
    "from a file, in `rewards`",
    "trainer.total_epochs": "`trainer.total_epochs`, unless total_training_steps is set",
    "trainer.project_name": "`trainer.tracking.project_name`",
    "trainer.total_training_steps": "`trainer.max_steps`",
    "trainer.critic_warmup": "`algorithm.advantage.critic.warmup_steps`",
    "trainer.experiment_name": "`trainer.tracking.run_name`, and `trainer.output_dir`: "
    "checkpoints/PROJECT/NAME",
    "trainer.default_local_dir": "`trainer.output_dir`",
    "trainer.logger": "`trainer.tracking.report_to`",
    "trainer.save_freq": "`trainer.checkpoints.save_steps`",
    "trainer.test_freq": "`trainer.validation.steps`",
    "trainer.val_before_train": "`trainer.validation.before_train`",
    "trainer.max_actor_ckpt_to_keep": "`trainer.checkpoints.save_total_limit`, 2 or more",
    "global_profiler.steps": "`trainer.profile_steps`, with a tool",
    "global_profiler.tool": "`trainer.profile_steps`: the traces of torch.profiler",
    "--config-name": "none: give that YAML itself, with the script's overrides",
}

_SPEED = "a matter of speed and memory alone"
_PROCESSES = "set resources=auto, or resources.ranks and resources.engines"
_SHARDING = "resources.ranks and resources.fsdp_size shard the model"
_TURNS = "turns and tools are set in the section environment (docs/tools.md)"

# Keys without a counterpart, or sections of such keys, and why there is none.
UNNEEDED = {
    **because(_PROCESSES, "rollout", "nnodes n_gpus_per_node"),
    "data.tokenizer": "the tokenizer is that of model.path",
    "data.use_shm": _SPEED,
    "data.train_max_samples": "all rows are read; cut the file",
    "data.val_max_samples": "eval.limit evaluates the first records only",
    "data.val_batch_size": "prompts are evaluated in parts, which does not change the result",
    "data.tool_config_path": "environment.tools names that YAML as it is (docs/tools.md)",
    "data.function_tool_path": _TURNS,
    **because(
        "prompts are always kept as text and as tokens", "data",
        "return_raw_input_ids return_raw_chat return_full_prompt",
    ),
    "data.return_multi_modal_inputs": "images and videos are always prepared",
    "data.dataloader_num_workers": "data.num_workers decodes images and videos",
    "data.image_patch_size": "the processor of the model knows it",
    "data.audio_key": "mmr1 reads no sound",
    "data.mm_processor_kwargs": "data.image.max_pixels and its relatives set sizes",
    "data.validation_shuffle": "a validation has all rows, so their order does not matter",
    "data.filter_overlong_prompts": "prompts that are too long are always left out, and listed",
    "data.filter_overlong_prompts_workers": "prompts are measured without worker processes",
    "data.trust_remote_code": "model.trust_remote_code, once you have read the code",
    "data.custom_cls": "name a format of your own in data.format, file.py:NAME",
    "data.sampler": "the order of the prompts is that of a shuffle, by seed",
    "data.datagen": "data are not made while training",
    f"{MODEL}.hf_config_path": "the configuration is that of model.path",
    f"{MODEL}.tokenizer_path": "the tokenizer is that of model.path",
    **because(
        _SPEED, MODEL,
        "use_shm enable_activation_offload use_liger use_fused_kernels fused_kernel_options "
        "tiled_mlp",
    ),
    f"{MODEL}.trust_remote_code": "model.trust_remote_code, once you have read the code",
    f"{MODEL}.external_lib": "code of a model's repository is never run",
    f"{MODEL}.override_config": "edit the config.json of model.path",
    f"{MODEL}.use_remove_padding": "sequences are always packed",
    f"{MODEL}.lora": "PEFT's own choices are used",
    f"{MODEL}.torch_dtype": "model.dtype",
    f"{MODEL}.mtp": "heads that predict several tokens are not trained",
    "actor_rollout_ref.hybrid_engine": "one process trains and samples unless resources say more",
    "actor_rollout_ref.nccl_timeout": "resources.collective_timeout_s",
    **because("more than one rank always runs on FSDP2", ACTOR, "strategy model_engine"),
    f"{ACTOR}.rollout_n": "it is that of the rollout",
    **because(_SHARDING, ACTOR, "fsdp_config megatron veomni engine"),
    f"{ACTOR}.qat": "weights are not quantised",
    **because(
        "see trainer.max_tokens_per_gpu", ACTOR,
        "ppo_micro_batch_size ppo_micro_batch_size_per_gpu ppo_max_token_len_per_gpu",
    ),
    f"{ACTOR}.use_dynamic_bsz": "micro-batches are always cut by tokens",
    f"{ACTOR}.ulysses_sequence_parallel_size": "resources.context_parallel_size cuts sequences "
    "over ranks",
    f"{ACTOR}.policy_loss": "read by another loss_mode only",
    f"{ACTOR}.calculate_entropy": "the entropy is always logged",
    f"{ACTOR}.calculate_sum_pi_squared": "read by optimal_token_baseline only",
    **because(
        _SPEED, ACTOR,
        "sum_pi_squared_checkpointing entropy_checkpointing entropy_from_logits_with_chunking "
        "entropy_from_logits_chunk_size use_torch_compile use_fused_kernels use_prefix_grouper "
        "pad_to_length",
    ),
    f"{ACTOR}.use_remove_padding": "sequences are always packed",
    f"{ACTOR}.data_loader_seed": "seed is that of everything",
    f"{ACTOR}.checkpoint": "checkpoints hold model, optimizer and state; trainer.save_only_model",
    f"{ACTOR}.profiler": "trainer.profile_steps",
    f"{ACTOR}.router_replay": "set algorithm.router_replay=R3 for its mode R3; there is no R2",
    **because("AdamW is the optimizer", ACTOR, "optim.optimizer optim.optimizer_impl"),
    f"{ACTOR}.optim.total_training_steps": "the run's own number of steps",
    f"{ACTOR}.optim.zero_indexed_step": "the first step of the warm-up has a rate above 0",
    f"{ACTOR}.optim.override_optimizer_config": "optimizer.offload and optimizer.state_dtype",
    "actor_rollout_ref.ref": "algorithm.kl.reference.offload keeps the reference in main memory",
    f"{ROLLOUT}.mode": "rollouts are synchronous unless rollout.max_off_policy_steps is set",
    f"{ROLLOUT}.ignore_eos": "a completion ends with its end token",
    **because(
        _SPEED, ROLLOUT,
        "enforce_eager cudagraph_capture_sizes free_cache_engine max_num_batched_tokens "
        "max_num_seqs enable_chunked_prefill enable_prefix_caching scheduling_policy load_format "
        "layered_summon multi_stage_wake_up checkpoint_engine update_weights_bucket_megabytes "
        "skip_tokenizer_init",
    ),
    **because(
        _PROCESSES, ROLLOUT,
        "data_parallel_size expert_parallel_size moe_tensor_parallel_size "
        "pipeline_model_parallel_size nnodes n_gpus_per_node disaggregation",
    ),
    f"{ROLLOUT}.logprobs_mode": "log-probs are those of the sampling distribution's model",
    **because(
        "see trainer.max_tokens_per_gpu", ROLLOUT,
        "log_prob_micro_batch_size log_prob_micro_batch_size_per_gpu "
        "log_prob_max_token_len_per_gpu",
    ),
    f"{ROLLOUT}.log_prob_use_dynamic_bsz": "micro-batches are always cut by tokens",
    f"{ROLLOUT}.disable_log_stats": "a matter of display alone",
    f"{ROLLOUT}.do_sample": "training always samples",
    f"{ROLLOUT}.over_sample_rate": "algorithm.filter_groups.gen_batch_size",
    f"{ROLLOUT}.engine_kwargs": "rollout.engine.engine_kwargs has further arguments of vLLM, by "
    "vLLM's own names",
    **because(_TURNS, ROLLOUT, "multi_turn agent"),
    f"{ROLLOUT}.calculate_log_probs": "the engine's log-probs are always kept",
    f"{ROLLOUT}.trace": "rollouts/ holds the completions",
    **because("rollouts are not replayed from files", ROLLOUT, "skip_rollout skip_dump_dir"),
    f"{ROLLOUT}.enable_rollout_routing_replay": "set algorithm.router_replay=R3",
    f"{ROLLOUT}.moe_load_balance_metrics_interval": "router_aux_loss is logged in every step, "
    "where algorithm.router_aux_loss_coef is set",
    f"{ROLLOUT}.profiler": "trainer.profile_steps",
    f"{ROLLOUT}.prometheus": "trackers show the metrics",
    **because(
        "vLLM's quantization, in rollout.engine.engine_kwargs", ROLLOUT,
        "quantization quantization_config_file",
    ),
    f"{ROLLOUT}.qat": "weights are not quantised",
    f"{ROLLOUT}.mtp": "heads that predict several tokens are not trained",
    f"{ROLLOUT}.seed": "seed is that of everything",
    f"{ROLLOUT}.limit_images": "the number of images is not limited",
    **because("rows are not drawn again by their rewards", "algorithm", "use_pf_ppo pf_ppo"),
    "algorithm.filter_groups.max_inflight_gen_batches": _SPEED,
    **because(
        "resources.ranks and resources.fsdp_size shard the critic too", "critic",
        "strategy fsdp megatron veomni",
    ),
    **because("the critic shares the policy's settings, or needs none", "critic", "model optim"),
    "critic.checkpoint": "checkpoints always hold the critic",
    "critic.profiler": "trainer.profile_steps",
    **because(_SPEED, "", "critic transfer_queue"),
    "reward.reward_manager": "reward functions come from rewards",
    "reward.reward_model": "see reward.reward_model.model_path",
    "reward.sandbox_fusion": "plugins run in a sandbox of this machine",
    "reward_model": "see reward.reward_model.model_path",
    "reward_manager": "reward functions come from rewards",
    "sandbox_fusion": "plugins run in a sandbox of this machine",
    "distillation": "docs/sft.md has on_policy_distillation, with one teacher in the run",
    "trainer.balance_batch": "micro-batches are always cut by cost",
    **because(
        "all completions of a validation are kept", "trainer",
        "log_val_generations validation_data_dir",
    ),
    "trainer.rollout_data_dir": "rollouts/ holds the completions",
    **because(_PROCESSES, "trainer", "nnodes n_gpus_per_node use_legacy_worker_impl use_v1 v1"),
    "trainer.esi_redundant_time": "trainer.grace_period_s",
    **because("mmr1 train --resume continues a run", "trainer", "resume_mode resume_from_path"),
    "trainer.val_only": "mmr1 eval evaluates without training",
    **because(
        "checkpoints are in trainer.output_dir", "trainer",
        "default_hdfs_dir del_local_ckpt_after_load checkpoint_callback_class",
    ),
    "trainer.max_critic_ckpt_to_keep": "the critic is in the policy's checkpoints",
    "trainer.ray_wait_register_center_timeout": "resources.ray.start_timeout_s",
    "trainer.device": "the device is found",
    "global_profiler": "trainer.profile_steps",
    "skip": "rollouts are not replayed from files",
    "ray_kwargs": "resources.ray.address names the cluster",
    **because(
        "more than one rank always runs on FSDP2", "",
        "model_engine actor@actor_rollout_ref",
    ),
    **because("of verl's own command line", "", "hydra defaults --config-path --config-dir"),
}  # fmt: skip
