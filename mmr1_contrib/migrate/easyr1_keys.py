"""EasyR1's keys: their defaults, what they are called here, and those that are not needed."""

from __future__ import annotations

from mmr1_contrib.migrate.migration import Tree, because

# What EasyR1 takes for a key that its YAML leaves out (its config.py files), where it matters to
# what is sampled and learned.
DEFAULTS: Tree = {
    "data.prompt_key": "prompt",
    "data.answer_key": "answer",
    "data.image_key": "images",
    "data.video_key": "videos",
    "data.video_fps": 2.0,
    "data.max_prompt_length": 512,
    "data.max_response_length": 512,
    "data.rollout_batch_size": 512,
    "data.min_pixels": 262144,
    "data.max_pixels": 4194304,
    "data.seed": 1,
    "data.shuffle": True,
    "algorithm.adv_estimator": "grpo",
    "algorithm.gamma": 1.0,
    "algorithm.lam": 1.0,
    "algorithm.disable_kl": False,
    "algorithm.use_kl_loss": False,
    "algorithm.kl_penalty": "kl",
    "algorithm.kl_coef": 1e-3,
    "algorithm.kl_type": "fixed",
    "algorithm.kl_horizon": 10000.0,
    "algorithm.kl_target": 0.1,
    "algorithm.online_filtering": False,
    "algorithm.filter_key": "overall",
    "algorithm.filter_low": 0.01,
    "algorithm.filter_high": 0.99,
    "worker.actor.global_batch_size": 256,
    "worker.actor.max_grad_norm": 1.0,
    "worker.actor.clip_ratio_low": 0.2,
    "worker.actor.clip_ratio_high": 0.3,
    "worker.actor.clip_ratio_dual": 3.0,
    "worker.actor.tau_positive": 1.0,
    "worker.actor.tau_negative": 1.05,
    "worker.actor.loss_type": "default",
    "worker.actor.loss_avg_mode": "token",
    "worker.actor.ppo_epochs": 1,
    "worker.actor.model.lora.rank": 0,
    "worker.actor.model.lora.alpha": 64,
    "worker.actor.model.lora.target_modules": "all-linear",
    "worker.actor.optim.lr": 1e-6,
    "worker.actor.optim.betas": [0.9, 0.999],
    "worker.actor.optim.weight_decay": 1e-2,
    "worker.actor.optim.strategy": "adamw",
    "worker.actor.optim.lr_warmup_ratio": 0.0,
    "worker.actor.optim.lr_scheduler_type": "constant",
    "worker.critic.global_batch_size": 256,
    "worker.critic.cliprange_value": 0.5,
    "worker.critic.loss_avg_mode": "token",
    "worker.critic.ppo_epochs": 1,
    "worker.critic.optim.lr": 1e-6,
    "worker.rollout.n": 1,
    "worker.rollout.temperature": 1.0,
    "worker.rollout.top_p": 1.0,
    "worker.rollout.top_k": -1,
    "worker.rollout.val_override_config.n": 1,
    "trainer.total_epochs": 15,
    "trainer.max_try_make_batch": 20,
    "trainer.critic_warmup": 0,
    "trainer.val_freq": -1,
    "trainer.val_before_train": True,
    "trainer.save_freq": -1,
    "trainer.save_limit": -1,
    "trainer.save_model_only": False,
    "trainer.project_name": "easy_r1",
    "trainer.experiment_name": "demo",
    "trainer.logger": ["console", "wandb"],
}

OLDER = {
    "trainer.total_episodes": "trainer.total_epochs",
    "worker.reward.score_function": "worker.reward.reward_function",
}

# Their key -> our key, where the value stays the same.
RENAMED = {
    "data.train_files": "data.train",
    "data.image_dir": "data.media_root",
    "data.video_fps": "data.video.fps",
    "data.video_max_frames": "data.video.max_frames",
    "data.video_total_pixels": "data.video.total_pixels",
    "data.override_chat_template": "data.chat_template",
    "data.seed": "seed",
    "worker.actor.max_grad_norm": "optimizer.max_grad_norm",
    "worker.actor.model.model_path": "model.path",
    "worker.actor.model.freeze_vision_tower": "model.freeze_vision_tower",
    "worker.actor.model.enable_gradient_checkpointing": "model.gradient_checkpointing",
    "worker.actor.optim.lr": "optimizer.lr",
    "worker.actor.optim.betas": "optimizer.betas",
    "worker.actor.optim.weight_decay": "optimizer.weight_decay",
    "worker.actor.optim.lr_scheduler_type": "optimizer.scheduler.type",
    "worker.actor.ppo_epochs": "algorithm.ppo_epochs",
    "worker.rollout.n": "rollout.n",
    "worker.rollout.temperature": "rollout.temperature",
    "worker.rollout.top_p": "rollout.top_p",
    "worker.rollout.gpu_memory_utilization": "rollout.engine.gpu_memory_utilization",
    "worker.rollout.tensor_parallel_size": "rollout.engine.tensor_parallel_size",
    "worker.reward.num_cpus": "scoring.workers",
}

# Their key -> our key and the values' names, where these differ.
TRANSLATED: dict[str, tuple[str, dict[str, str]]] = {
    "worker.actor.loss_avg_mode": (
        "algorithm.loss.agg_mode",
        {"token": "token-mean", "seq": "seq-mean-token-mean"},
    ),
    "worker.rollout.dtype": (
        "rollout.engine.dtype",
        {"bf16": "bfloat16", "bfloat16": "bfloat16", "fp32": "float32", "float32": "float32"},
    ),
    "worker.actor.optim.strategy": (
        "optimizer.state_dtype",
        {"adamw": "float32", "adamw_bf16": "bfloat16"},
    ),
}

# Advantages of the group, which go with any loss; and those with an algorithm of their own.
ESTIMATORS = {"grpo": None, "rloo": "rloo", "grpo_passk": "pass_at_k"}
OWN_ALGORITHMS = {"remax": "remax", "reinforce_plus_plus": "reinforce_pp", "gae": "ppo"}
LOSSES = {
    "default": "ppo", "gspo": "gspo", "gspo_token": "gspo", "cispo": "cispo", "sapo": "sapo",
}  # fmt: skip
KL = {"kl": "k1", "abs": "absolute", "mse": "k2", "low_var_kl": "k3"}

_CRITIC = {
    **dict.fromkeys(
        ("max_grad_norm", "optim.betas", "optim.weight_decay", "optim.strategy",
         "model.enable_gradient_checkpointing", "model.freeze_vision_tower"),
        "none: that of the policy",
    ),
    "optim.lr_warmup_ratio": "none: optimizer.scheduler.warmup_steps warms it up too",
    "optim.lr_warmup_steps": "none: optimizer.scheduler.warmup_steps warms it up too",
    "optim.min_lr_ratio": "none: its rate is constant",
    "optim.lr_scheduler_type": "none: its rate is constant",
    "model.lora": "none: it has adapters where the policy has",
    "model.tokenizer_path": "none: the tokenizer is that of model.path",
    "model.trust_remote_code": "none: model.trust_remote_code is for all models",
    "model.override_config": "none: edit the config.json of the model",
    "strategy": "none: more than one rank always runs on FSDP2",
    "fsdp": "none: resources.ranks and resources.fsdp_size shard it",
    "offload": "none: rollout.engine.offload_trainer and optimizer.offload are for it too",
    "ulysses_size": "none: resources.context_parallel_size cuts sequences over ranks",
    "padding_free": "none: sequences are always packed",
    "dynamic_batching": "none: micro-batches are always cut by tokens",
    "micro_batch_size_per_device_for_update": "none: see trainer.max_tokens_per_gpu",
    "micro_batch_size_per_device_for_experience": "none: see trainer.max_tokens_per_gpu",
}  # fmt: skip

# Keys that are carried over together with others, and how: for docs/migration.md.
COMPOSED = {
    "data.val_files": "`trainer.validation.data`",
    "data.prompt_key": "`data.format.prompt_key`",
    "data.answer_key": "`data.format.answer_key`",
    "data.image_key": "`data.format.image_key`",
    "data.video_key": "`data.format.video_key`",
    "data.max_prompt_length": "`rollout.max_prompt_length`",
    "data.max_response_length": "`rollout.max_response_length`",
    "data.rollout_batch_size": "`data.train_batch_size`",
    "data.min_pixels": "`data.image.min_pixels` and `data.video.min_pixels`; `data.image.resize`",
    "data.max_pixels": "`data.image.max_pixels` and `data.video.max_pixels`; `data.image.resize`",
    **{
        f"data.{kind}_{bound}_pixels": f"`data.{kind}.{bound}_pixels`, before {bound}_pixels"
        for kind in ("image", "video")
        for bound in ("min", "max")
    },
    "data.format_prompt": "`data.prompt_template`, as it is",
    "data.shuffle": "none: the data are always shuffled, by seed",
    "worker.rollout.enable_mix_policy": "none: all completions of a group are sampled",
    "algorithm.adv_estimator": "`algorithm.name`, or `algorithm.advantage.type` under another loss",
    "algorithm.gamma": "`algorithm.advantage.gamma`, of REINFORCE++ and PPO",
    "algorithm.lam": "`algorithm.advantage.lam`",
    "algorithm.disable_kl": "`algorithm.kl=null`",
    "algorithm.use_kl_loss": "`algorithm.kl.type`: loss, else reward",
    "algorithm.kl_penalty": "`algorithm.kl.estimator`: kl is k1, mse is k2, low_var_kl is k3",
    "algorithm.kl_coef": "`algorithm.kl.coef`",
    "algorithm.kl_type": "adaptive: `algorithm.kl.target` is set",
    "algorithm.kl_horizon": "none: a step changes the coefficient by 0.1 of the relative error",
    "algorithm.kl_target": "`algorithm.kl.target`",
    "algorithm.online_filtering": "`algorithm.filter_groups.type=resample`",
    "algorithm.filter_key": "`algorithm.filter_groups.range.metric`: overall; others are left out",
    "algorithm.filter_low": "`algorithm.filter_groups.range.between`",
    "algorithm.filter_high": "`algorithm.filter_groups.range.between`",
    "worker.actor.global_batch_size": "`algorithm.ppo_mini_batch_size`, in prompts too",
    "worker.actor.clip_ratio_low": "`algorithm.loss.clip_ratio_low`",
    "worker.actor.clip_ratio_high": "`algorithm.loss.clip_ratio_high`",
    "worker.actor.clip_ratio_dual": "`algorithm.loss.clip_ratio_dual`",
    "worker.actor.tau_positive": "`algorithm.loss.tau_pos`",
    "worker.actor.tau_negative": "`algorithm.loss.tau_neg`",
    "worker.actor.loss_type": "`algorithm.name`, or `algorithm.loss.type` under another advantage; "
    "gspo_token is gspo, with the same gradient",
    "worker.actor.model.lora.rank": "`model.lora.rank`; 0: no adapters",
    "worker.actor.model.lora.alpha": "`model.lora.alpha`",
    "worker.actor.model.lora.target_modules": "`model.lora.target_modules`",
    "worker.actor.model.lora.exclude_modules": "visual: `model.freeze_vision_tower`",
    "worker.actor.optim.lr_warmup_ratio": "`optimizer.scheduler.warmup_steps`",
    "worker.actor.optim.lr_warmup_steps": "`optimizer.scheduler.warmup_steps`, times the updates "
    "per rollout",
    "worker.actor.optim.min_lr_ratio": "`optimizer.scheduler.min_lr`, times lr",
    "worker.critic.global_batch_size": "none: `algorithm.ppo_mini_batch_size`",
    "worker.critic.cliprange_value": "`algorithm.advantage.critic.cliprange_value`",
    "worker.critic.loss_avg_mode": "none: the critic's loss is the mean over tokens",
    "worker.critic.ppo_epochs": "`algorithm.advantage.critic.ppo_epochs`",
    "worker.critic.optim.lr": "`algorithm.advantage.critic.lr`",
    "worker.critic.model.model_path": "`algorithm.advantage.critic.path`",
    **{f"worker.critic.{key}": why for key, why in _CRITIC.items()},
    "worker.rollout.top_k": "`rollout.top_k`",
    "worker.rollout.max_model_len": "none: `rollout.max_prompt_length` and the length of "
    "completions",
    "worker.rollout.val_override_config.temperature": "`eval.sampled.temperature`; 0: "
    "`eval.sampled=null`, the "
    "greedy completion alone",
    "worker.rollout.val_override_config.n": "`eval.sampled.n`",
    "worker.rollout.val_override_config.top_p": "`eval.sampled.top_p`",
    "worker.rollout.val_override_config.top_k": "`eval.sampled.top_k`",
    "worker.reward.reward_function": "`rewards`",
    "worker.reward.reward_function_kwargs": "`rewards`: its options",
    "trainer.total_epochs": "`trainer.total_epochs`, unless max_steps is set",
    "trainer.max_steps": "`trainer.max_steps`",
    "trainer.max_try_make_batch": "`algorithm.filter_groups.max_num_gen_batches`",
    "trainer.critic_warmup": "`algorithm.advantage.critic.warmup_steps`",
    "trainer.val_freq": "`trainer.validation.steps`",
    "trainer.val_before_train": "`trainer.validation.before_train`",
    "trainer.save_freq": "`trainer.checkpoints.save_steps`",
    "trainer.save_limit": "`trainer.checkpoints.save_total_limit`, 2 or more",
    "trainer.save_model_only": "`trainer.save_only_model`",
    "trainer.save_checkpoint_path": "`trainer.output_dir`",
    "trainer.load_checkpoint_path": "none: mmr1 train --resume continues a run",
    "trainer.project_name": "`trainer.tracking.project_name`",
    "trainer.experiment_name": "`trainer.tracking.run_name`, and `trainer.output_dir`: runs/NAME",
    "trainer.logger": "`trainer.tracking.report_to`",
}

# Keys without a counterpart, or sections of such keys, and why there is none.
UNNEEDED = {
    **because(
        "frames are decoded when they are needed, and kept", "data",
        "use_preprocessed_videos video_source_mode preprocessed_video_dir "
        "val_preprocessed_video_dir val_video_source_mode",
    ),
    **because(
        "a validation has the frames of the training", "data",
        "val_video_fps val_video_max_frames val_video_min_pixels val_video_max_pixels "
        "val_video_total_pixels",
    ),
    "data.filter_overlong_prompts": "prompts that are too long are always left out, and listed",
    "data.filter_overlong_prompts_workers": "prompts are measured without worker processes",
    "data.val_batch_size": "prompts are evaluated in parts, which does not change the result",
    "data.mini_rollout_batch_size": "algorithm.filter_groups.gen_batch_size sets the prompts of a "
    "draw",
    "worker.actor.padding_free": "sequences are always packed",
    "worker.actor.dynamic_batching": "micro-batches are always cut by tokens",
    "worker.actor.use_torch_compile": "nothing is compiled",
    "worker.actor.strategy": "more than one rank always runs on FSDP2",
    "worker.actor.fsdp.torch_dtype": "model.dtype; bfloat16 has a float32 copy in the optimizer",
    "worker.actor.fsdp": "resources.ranks and resources.fsdp_size shard the model",
    "worker.actor.offload": "rollout.engine.offload_trainer, or optimizer.offload",
    **because(
        "see trainer.max_tokens_per_gpu", "worker.actor",
        "micro_batch_size_per_device_for_update micro_batch_size_per_device_for_experience",
    ),
    **because(
        "resources.context_parallel_size cuts sequences over ranks", "worker.actor",
        "ulysses_size ulysses_sequence_parallel_size",
    ),
    "worker.actor.model.trust_remote_code": "model.trust_remote_code, once you have read it",
    "worker.actor.model.tokenizer_path": "the tokenizer is that of model.path",
    "worker.actor.model.override_config": "edit the config.json of model.path",
    "worker.hybrid_engine": "one process trains and samples unless resources say more",
    "worker.rollout.ignore_eos": "a completion always ends with the end-of-sequence token",
    "worker.rollout.val_override_config": "eval.sampled has n, temperature, top_p and top_k",
    "worker.rollout.name": "rollout.engine is vllm unless it is set",
    "worker.rollout.seed": "seed is that of everything",
    "worker.rollout.limit_images": "the number of images is not limited",
    **because(
        "a matter of speed alone", "worker.rollout",
        "enforce_eager enable_chunked_prefill max_num_batched_tokens",
    ),
    **because("a matter of display alone", "worker.rollout", "disable_log_stats disable_tqdm"),
    "worker.ref": "algorithm.kl.reference.offload keeps the reference in main memory",
    "worker.reward.reward_type": "the function's parameters, or its REWARD_TYPE, tell",
    "worker.reward.skip_special_tokens": "only special tokens around turns are left out",
    **because(
        "set resources=auto, or resources.ranks and resources.engines", "trainer",
        "n_gpus_per_node nnodes",
    ),
    "trainer.val_generations_to_log": "all completions of a validation are kept",
    "trainer.val_only": "mmr1 eval evaluates without training",
    "trainer.find_last_checkpoint": "mmr1 train --resume continues a run",
    "trainer.ray_timeline": "there is no such file",
}  # fmt: skip

USUAL_COLUMNS = {
    "data.prompt_key": "problem",
    "data.answer_key": "answer",
    "data.image_key": "images",
    "data.video_key": "videos",
}
