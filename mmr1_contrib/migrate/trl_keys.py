"""TRL's keys: their defaults, what they are called here, and those that are not needed.

Keys and defaults are those of TRL 1.16.0 (``GRPOConfig``, ``RLOOConfig``, ``DPOConfig``,
``KTOConfig``, ``SFTConfig``, ``RewardConfig``, ``ModelConfig`` and the arguments of its scripts)
and of the ``TrainingArguments`` of transformers 5.
"""

from __future__ import annotations

from mmr1_contrib.migrate.migration import Tree
from mmr1_contrib.migrate.shared import is_none_of, is_one_of

_WEIGHTS = "algorithm.rollout_correction.importance_sampling"

# --- What all trainers share ---------------------------------------------------------------------

DEFAULTS: Tree = {
    "dataset_train_split": "train",
    "dataset_test_split": "test",
    "num_processes": 1,
    "per_device_train_batch_size": 8,
    "gradient_accumulation_steps": 1,
    "num_train_epochs": 3.0,
    "max_steps": -1,
    "lr_scheduler_type": "linear",
    "warmup_steps": 0,
    "weight_decay": 0.0,
    "adam_beta1": 0.9,
    "adam_beta2": 0.999,
    "adam_epsilon": 1e-8,
    "max_grad_norm": 1.0,
    "gradient_checkpointing": True,
    "bf16": True,
    "dtype": "float32",
    "seed": 42,
    "logging_steps": 10,
    "save_strategy": "steps",
    "save_steps": 500,
    "eval_strategy": "no",
    "report_to": "none",
    "use_peft": False,
    "lora_r": 16,
    "lora_alpha": 32,
    "lora_dropout": 0.05,
    "model_revision": "main",
}

RENAMED = {
    "model_name_or_path": "model.path",
    "gradient_checkpointing": "model.gradient_checkpointing",
    "learning_rate": "optimizer.lr",
    "weight_decay": "optimizer.weight_decay",
    "max_grad_norm": "optimizer.max_grad_norm",
    "seed": "seed",
    "full_determinism": "full_determinism",
    "save_only_model": "trainer.save_only_model",
    "dataloader_num_workers": "data.num_workers",
}

COMPOSED = {
    "dataset_name": "`data.train`: NAME@SPLIT",
    "dataset_train_split": "`data.train`: NAME@SPLIT",
    "dataset_test_split": "`trainer.validation.data`: NAME@SPLIT, with eval_strategy",
    "dataset_config": "none: name a file, or a dataset without configurations",
    "num_processes": "the processes of the launcher: per_device_train_batch_size is of each",
    "per_device_train_batch_size": "the batch size, times num_processes and "
    "gradient_accumulation_steps",
    "gradient_accumulation_steps": "the batch size; see per_device_train_batch_size",
    "num_train_epochs": "`trainer.total_epochs`, unless max_steps is set",
    "max_steps": "`trainer.max_steps`, divided by the optimizer steps per rollout",
    "lr_scheduler_type": "`optimizer.scheduler.type`: linear, cosine, constant, "
    "constant_with_warmup and cosine_with_min_lr",
    "lr_scheduler_kwargs": "min_lr or min_lr_rate: `optimizer.scheduler.min_lr`",
    "warmup_steps": "`optimizer.scheduler.warmup_steps`; below 1 a share of all steps",
    "warmup_ratio": "`optimizer.scheduler.warmup_steps`",
    "adam_beta1": "`optimizer.betas`",
    "adam_beta2": "`optimizer.betas`",
    "adam_epsilon": "none: 1e-8",
    "optim": "none: AdamW; `optimizer.state_dtype=bfloat16` for 8-bit ones",
    "bf16": "`model.dtype=bfloat16`, with a float32 copy in the optimizer",
    "dtype": "`model.dtype`",
    "model_revision": "none: a folder of that revision as `model.path`",
    "use_peft": "`model.lora`",
    "load_in_4bit": "`model.lora.load_in_4bit`, with use_peft",
    "lora_r": "`model.lora.rank`",
    "lora_alpha": "`model.lora.alpha`",
    "lora_dropout": "`model.lora.dropout`",
    "lora_target_modules": "`model.lora.target_modules`; not set: q_proj and v_proj, PEFT's choice",
    "output_dir": "`trainer.output_dir`",
    "logging_steps": "`trainer.logging_steps`, divided by the optimizer steps per rollout",
    "save_strategy": "no: `trainer.checkpoints=null`",
    "save_steps": "`trainer.checkpoints.save_steps`, divided by the optimizer steps per rollout",
    "save_total_limit": "`trainer.checkpoints.save_total_limit`, 2 or more",
    "eval_strategy": "`trainer.validation.steps`",
    "eval_steps": "`trainer.validation.steps`, divided by the optimizer steps per rollout",
    "eval_on_start": "`trainer.validation.before_train`",
    "project": "`trainer.tracking.project_name`, with report_to",
    "run_name": "`trainer.tracking.run_name`, with report_to",
    "report_to": "`trainer.tracking.report_to`",
    "config": "the YAML file itself; its keys are read",
}

_SPEED = "a matter of speed and memory alone"
_PROCESSES = "set resources=auto, or resources.ranks and resources.engines"
_ONE_KIND = "read by another trainer or loss only"

UNNEEDED = {
    "dataset_streaming": "records are read from a file by their positions",
    "ignore_bias_buffers": _PROCESSES,
    "datasets": "data.train takes several files with weights",
    "trust_remote_code": "model.trust_remote_code, once you have read the code",
    "attn_implementation": "the fastest one that is installed is used",
    "model_init_kwargs": "model.dtype and the configuration of model.path",
    "quantization_config": "weights are not quantised",
    "load_in_8bit": "model.lora.load_in_4bit quantises to 4 bits",
    "bnb_4bit_quant_type": "NF4, with model.lora.load_in_4bit",
    "use_bnb_nested_quant": "double quantization, with model.lora.load_in_4bit",
    "bnb_4bit_quant_storage": "NF4, with model.lora.load_in_4bit",
    "lora_task_type": "the task is that of the command",
    "lora_target_parameters": "layers are adapted by name, in model.lora.target_modules",
    "lora_modules_to_save": "adapters are trained and no other weight is",
    "use_rslora": "alpha is divided by the rank; set model.lora.alpha to alpha * sqrt(rank)",
    "use_dora": "adapters are plain LoRA",
    "router_aux_loss_coef": "set algorithm.router_aux_loss_coef, for models with experts",
    "disable_dropout": "the model's own dropout is always off; `model.lora.dropout` is kept",
    "remove_unused_columns": "reward functions get the columns that they name",
    "pad_to_multiple_of": _SPEED,
    "pad_token": "the tokenizer is that of model.path",
    "eos_token": "the tokenizer is that of model.path",
    "padding_free": "sequences are always packed",
    "activation_offloading": _SPEED,
    "use_liger_kernel": _SPEED,
    "torch_empty_cache_steps": _SPEED,
    "gradient_checkpointing_kwargs": _SPEED,
    "torch_compile": _SPEED,
    "tf32": _SPEED,
    "bf16_full_eval": _SPEED,
    "fp16": "model.dtype is bfloat16 or float32",
    "data_seed": "seed is that of everything",
    "dataset_num_proc": "rows are read without worker processes",
    "dataset_kwargs": "the format of the rows tells what they are",
    "dataloader_drop_last": "an epoch ends with the last rows",
    "dataloader_pin_memory": _SPEED,
    "dataloader_prefetch_factor": _SPEED,
    "dataloader_persistent_workers": _SPEED,
    "ddp_find_unused_parameters": _PROCESSES,
    "ddp_timeout": "resources.collective_timeout_s",
    "deepspeed": _PROCESSES,
    "fsdp": _PROCESSES,
    "fsdp_config": _PROCESSES,
    "parallelism_config": _PROCESSES,
    "local_rank": _PROCESSES,
    "accelerator_config": _PROCESSES,
    "include_num_input_tokens_seen": "the number of tokens is always logged",
    "logging_strategy": "metrics.jsonl has every step",
    "logging_first_step": "metrics.jsonl has every step",
    "logging_dir": "trainer.output_dir",
    "log_level": "a matter of display alone",
    "disable_tqdm": "a matter of display alone",
    "trackio_space_id": "trackers read their own variables of the environment",
    "per_device_eval_batch_size": "prompts are evaluated in parts, which does not change the "
    "result",
    "do_eval": "see eval_strategy",
    "do_train": "mmr1 eval evaluates without training",
    "load_best_model_at_end": "trainer.checkpoints.metric_for_best_model keeps the best checkpoint",
    "metric_for_best_model": "trainer.checkpoints.metric_for_best_model has our names of metrics",
    "greater_is_better": "see metric_for_best_model",
    "resume_from_checkpoint": "mmr1 train --resume continues a run",
    "overwrite_output_dir": "a folder with a run is never overwritten",
    "push_to_hub": "mmr1 export --push-to-hub uploads a checkpoint",
    "hub_model_id": "mmr1 export --push-to-hub uploads a checkpoint",
    "hub_strategy": "mmr1 export --push-to-hub uploads a checkpoint",
    "hub_token": "mmr1 export --push-to-hub uploads a checkpoint",
    "hub_private_repo": "mmr1 export --push-to-hub uploads a checkpoint",
    "env": "variables of the environment are the shell's",
    "use_cpu": "a GPU is used where there is one",
    "optim_args": "optimizer.betas and optimizer.weight_decay; the rest is AdamW's usual",
    "optim_target_modules": "all trained weights have AdamW",
    "label_smoothing_factor": "the cross-entropy is not smoothed",
    "neftune_noise_alpha": "no noise is added to embeddings",
    "average_tokens_across_devices": "a mean over tokens is that of all ranks",
    "auto_find_batch_size": "trainer.max_tokens_per_gpu bounds the memory of a micro-batch",
    "use_cache": _SPEED,
    "liger_kernel_config": _SPEED,
    "torch_compile_backend": _SPEED,
    "torch_compile_mode": _SPEED,
    "fp16_full_eval": _SPEED,
    "half_precision_backend": _SPEED,
    "dataloader_multiprocessing_context": _SPEED,
    "dataloader_in_order": _SPEED,
    "ddp_backend": _PROCESSES,
    "ddp_broadcast_buffers": _PROCESSES,
    "ddp_bucket_cap_mb": _PROCESSES,
    "ddp_static_graph": _PROCESSES,
    "log_on_each_node": "a matter of display alone",
    "log_level_replica": "a matter of display alone",
    "logging_nan_inf_filter": "a loss that is not finite ends the run",
    "skip_memory_metrics": "a matter of display alone",
    "debug": "a matter of display alone",
    "trackio_bucket_id": "trackers read their own variables of the environment",
    "trackio_static_space_id": "trackers read their own variables of the environment",
    "eval_delay": "a validation follows every trainer.validation.steps steps from the first",
    **dict.fromkeys(
        ("prediction_loss_only", "include_for_metrics", "batch_eval_metrics",
         "eval_accumulation_steps", "eval_do_concat_batches", "eval_use_gather_object"),
        "a validation samples completions and scores them",
    ),
    "do_predict": "mmr1 eval evaluates without training",
    "save_on_each_node": "checkpoints are in trainer.output_dir",
    "save_safetensors": "checkpoints are always safetensors",
    "enable_jit_checkpoint": "SIGTERM always saves the step",
    "hub_always_push": "mmr1 export --push-to-hub uploads a checkpoint",
    "hub_revision": "mmr1 export --push-to-hub uploads a checkpoint",
    "ignore_data_skip": "a resumed run continues with the next samples",
    "restore_callback_states_from_checkpoint": "there are no callbacks",
    "label_names": "the format of the rows tells what they are",
    "length_column_name": "the data are always shuffled, by seed",
    "group_by_length": "the data are always shuffled, by seed",
    "train_sampling_strategy": "the data are always shuffled, by seed",
}  # fmt: skip

OLDER = {
    "torch_dtype": "dtype",
    "evaluation_strategy": "eval_strategy",
    "max_seq_length": "max_length",
    "vllm_max_model_len": "vllm_max_model_length",
    "vllm_importance_sampling_cap": "vllm_importance_sampling_clip_max",
    "epsilon_low": "epsilon",
}

# --- GRPO and RLOO -------------------------------------------------------------------------------

ONLINE_DEFAULTS: Tree = {
    "learning_rate": 1e-6,
    "max_completion_length": 512,
    "temperature": 1.0,
    "top_p": 1.0,
    "top_k": 0,
    "repetition_penalty": 1.0,
    "shuffle_dataset": True,
    "use_vllm": False,
    "vllm_gpu_memory_utilization": 0.3,
    "vllm_tensor_parallel_size": 1,
    "num_iterations": 1,
    "epsilon": 0.2,
    "mask_truncated_completions": False,
    "sync_ref_model": False,
    "ref_model_mixup_alpha": 0.6,
    "ref_model_sync_steps": 512,
}

ONLINE_RENAMED = {
    "num_generations": "rollout.n",
    "temperature": "rollout.temperature",
    "top_p": "rollout.top_p",
    "top_k": "rollout.top_k",
    "min_p": "rollout.min_p",
    "num_iterations": "algorithm.ppo_epochs",
    "mask_truncated_completions": "algorithm.mask_truncated_completions",
}

ONLINE_COMPOSED = {
    "generation_batch_size": "`data.train_batch_size`, divided by num_generations",
    "steps_per_generation": "the mini-batches of a rollout: `algorithm.ppo_mini_batch_size` is "
    "`data.train_batch_size` x gradient_accumulation_steps / steps_per_generation",
    "num_generations_eval": "`eval.sampled.n`, else num_generations; sampled as in training",
    "shuffle_dataset": "none: the data are always shuffled, by seed",
    "repetition_penalty": "none: tokens are sampled as the policy has them",
    "generation_kwargs": "`rollout.top_p` and its relatives are all sampling parameters",
    "chat_template_kwargs": "`data.chat_template_kwargs`",
    "max_completion_length": "`rollout.max_response_length`",
    "max_prompt_length": "`rollout.max_prompt_length`",
    "use_vllm": "`rollout.engine.type`: vllm, else hf",
    "vllm_tensor_parallel_size": "`rollout.engine.tensor_parallel_size`, with use_vllm",
    "vllm_gpu_memory_utilization": "`rollout.engine.gpu_memory_utilization`, with use_vllm",
    "vllm_max_model_length": "`rollout.max_prompt_length`: what completions leave of it",
    "beta": "`algorithm.kl.coef`; 0: `algorithm.kl=null`",
    "epsilon": "`algorithm.loss.clip_ratio_low`; also the upper bound unless epsilon_high is set",
    "epsilon_high": "`algorithm.loss.clip_ratio_high`; for cispo the largest weight, 1 above it",
    "reward_funcs": "`rewards`: accuracy_reward is math; others by their dotted path",
    "reward_model_name_or_path": "none: a reward function that asks that model, by URL or from a "
    "file, in `rewards`",
    "reward_weights": "`rewards`: the weights",
    "sync_ref_model": "`algorithm.kl.reference.type=moving`",
    "ref_model_mixup_alpha": "`algorithm.kl.reference.mixup_alpha`",
    "ref_model_sync_steps": "`algorithm.kl.reference.sync_steps`, divided by the optimizer steps "
    "per "
    "rollout",
}

ONLINE_UNNEEDED = {
    "ds3_gather_for_generation": _SPEED,
    "cache_implementation": _SPEED,
    "vllm_mode": _PROCESSES,
    "vllm_device": _PROCESSES,
    "vllm_dtype": "rollout.engine.dtype, which is that of the model unless it is set",
    "vllm_enable_prefix_caching": _SPEED,
    "vllm_model_impl": _SPEED,
    "vllm_enable_sleep_mode": _SPEED,
    "vllm_structured_outputs_regex": "completions are not bound to a grammar",
    "vllm_server_base_url": _PROCESSES,
    "vllm_server_host": _PROCESSES,
    "vllm_server_port": _PROCESSES,
    "vllm_server_timeout": "rollout.timeout_s",
    "vllm_group_port": _PROCESSES,
    "use_transformers_continuous_batching": _SPEED,
    "transformers_continuous_batching_config": _SPEED,
    "use_transformers_paged": _SPEED,
    "log_completions": "rollouts/ holds the completions",
    "log_multimodal": "rollouts/ holds the completions",
    "log_unique_prompts": "rollouts/ holds the completions",
    "num_completions_to_print": "rollouts/ holds the completions",
    "log_completions_hub_repo": "rollouts/ holds the completions",
}

GRPO_DEFAULTS: Tree = {
    "num_generations": 8,
    "beta": 0.0,
    "sapo_temperature_neg": 1.05,
    "sapo_temperature_pos": 1.0,
    "importance_sampling_level": "token",
    "multi_objective_aggregation": "sum_then_normalize",
    "scale_rewards": "group",
    "loss_type": "dapo",
    "top_entropy_quantile": 1.0,
    "entropy_coef": 0.0,
    "use_adaptive_entropy": False,
    "vllm_importance_sampling_correction": True,
    "vllm_importance_sampling_mode": "sequence_mask",
    "vllm_importance_sampling_clip_max": 3.0,
    "use_bias_correction_kl": True,
}

GRPO_COMPOSED = {
    "delta": "`algorithm.loss.clip_ratio_dual`",
    "sapo_temperature_neg": "`algorithm.loss.tau_neg`",
    "sapo_temperature_pos": "`algorithm.loss.tau_pos`",
    "importance_sampling_level": "sequence: `algorithm.loss.type=gspo`",
    "multi_objective_aggregation": "normalize_then_sum: `algorithm.advantage.type=gdpo`",
    "scale_rewards": "`algorithm.advantage.scale_rewards`, the same names",
    "loss_type": "`algorithm.name`: cispo, sapo, else grpo. `algorithm.loss.agg_mode`: grpo and "
    "sapo are seq-mean-token-mean, dapo, cispo and bnpo token-mean, dr_grpo "
    "seq-mean-token-sum-norm, luspo seq-mean-token-sum; `algorithm.loss.agg_scope=rollout` for "
    "dapo and cispo",
    "top_entropy_quantile": "`algorithm.loss.top_entropy_quantile`",
    "entropy_coef": "`algorithm.entropy.coef`",
    "use_adaptive_entropy": "none: `algorithm.entropy.target` adapts by another rule",
    "vllm_importance_sampling_correction": "false: "
    "`algorithm.rollout_correction.importance_sampling=null`",
    "vllm_importance_sampling_mode": "`algorithm.rollout_correction.importance_sampling.level`: "
    "token or sequence, truncated",
    "vllm_importance_sampling_clip_max": f"`{_WEIGHTS}.threshold`",
    "vllm_importance_sampling_clip_min": "none: weights have no lower bound",
    "off_policy_mask_threshold": "`algorithm.rollout_correction.off_policy_mask_threshold`",
    "use_bias_correction_kl": "`algorithm.kl.use_bias_correction_kl`",
}

GRPO_UNNEEDED = {
    "cast_lm_head_to_fp32": "log-probs are always computed in float32",
    "vespo_k_pos": _ONE_KIND,
    "vespo_k_neg": _ONE_KIND,
    "vespo_lambda_pos": _ONE_KIND,
    "vespo_lambda_neg": _ONE_KIND,
    "entropy_coef_min": _ONE_KIND,
    "entropy_coef_max": _ONE_KIND,
    "entropy_coef_delta": _ONE_KIND,
    "entropy_target": _ONE_KIND,
    "max_tool_calling_iterations": "turns and tools are set in the section environment",
}

AGGREGATIONS = {
    "grpo": "seq-mean-token-mean",
    "sapo": "seq-mean-token-mean",
    "dapo": "token-mean",
    "cispo": "token-mean",
    "bnpo": "token-mean",
    "dr_grpo": "seq-mean-token-sum-norm",
    "luspo": "seq-mean-token-sum",
}
SCALES = ("group", "batch", "none")

GRPO_IN_FORCE = {
    "epsilon": ("loss_type", is_none_of("sapo", "cispo")),
    "epsilon_high": ("loss_type", is_none_of("sapo")),
    "delta": ("loss_type", is_none_of("sapo", "cispo")),
    "sapo_temperature_pos": ("loss_type", is_one_of("sapo")),
    "sapo_temperature_neg": ("loss_type", is_one_of("sapo")),
    "use_bias_correction_kl": ("beta", bool),
}

GRPO_SETTINGS = {
    "loss_type": ("algorithm.loss.type", "algorithm.loss.agg_mode", "algorithm.loss.agg_scope"),
    "scale_rewards": ("algorithm.advantage.scale_rewards",),
    "epsilon": ("algorithm.loss.clip_ratio_low",),
    "epsilon_high": ("algorithm.loss.clip_ratio_high",),
    "delta": ("algorithm.loss.clip_ratio_dual",),
    "sapo_temperature_pos": ("algorithm.loss.tau_pos",),
    "sapo_temperature_neg": ("algorithm.loss.tau_neg",),
    "importance_sampling_level": ("algorithm.loss.type",),
    "beta": ("algorithm.kl.coef", "algorithm.kl.estimator"),
    "use_bias_correction_kl": ("algorithm.kl.use_bias_correction_kl",),
    "entropy_coef": ("algorithm.entropy.coef",),
    "top_entropy_quantile": ("algorithm.loss.top_entropy_quantile",),
    "off_policy_mask_threshold": ("algorithm.rollout_correction.off_policy_mask_threshold",),
    "multi_objective_aggregation": ("algorithm.advantage.type",),
    "vllm_importance_sampling_mode": (f"{_WEIGHTS}.level",),
    "vllm_importance_sampling_clip_max": (
        "algorithm.rollout_correction.importance_sampling.threshold",
    ),
    "mask_truncated_completions": ("algorithm.mask_truncated_completions",),
    "num_generations": ("rollout.n",),
    "generation_batch_size": ("data.train_batch_size",),
    "steps_per_generation": ("algorithm.ppo_mini_batch_size",),
    "num_iterations": ("algorithm.ppo_epochs",),
    "temperature": ("rollout.temperature",),
}

RLOO_DEFAULTS: Tree = {
    "num_generations": 2,
    "beta": 0.05,
    "normalize_advantages": False,
}
RLOO_RENAMED = {"reward_clip_range": "algorithm.advantage.reward_clip_range"}
RLOO_COMPOSED = {"normalize_advantages": "none: advantages are not divided by their deviation"}
RLOO_SETTINGS = {
    "epsilon": ("algorithm.loss.clip_ratio_low",),
    "epsilon_high": ("algorithm.loss.clip_ratio_high",),
    "beta": ("algorithm.kl.coef", "algorithm.kl.estimator", "algorithm.kl.type"),
    "reward_clip_range": ("algorithm.advantage.reward_clip_range",),
    "normalize_advantages": ("algorithm.advantage.type", "algorithm.loss.type"),
    "mask_truncated_completions": ("algorithm.mask_truncated_completions",),
    "num_generations": ("rollout.n",),
    "num_iterations": ("algorithm.ppo_epochs",),
    "temperature": ("rollout.temperature",),
}

# --- DPO, KTO, SFT and reward models -------------------------------------------------------------

OFFLINE_DEFAULTS: Tree = {"max_length": 1024}
OFFLINE_COMPOSED = {
    "max_length": "none: rows are not cut; prompts that are too long are left out, and listed",
    "truncation_mode": "none: rows are not cut",
}
OFFLINE_UNNEEDED = {
    "precompute_ref_log_probs": _SPEED,
    "precompute_ref_batch_size": _SPEED,
    "chat_template_path": "data.chat_template, a .jinja file",
    "dataset_text_field": "the format of the rows tells what they are",
    "shuffle_dataset": "the data are always shuffled, by seed",
    "ref_model_mixup_alpha": "the reference is the model at the start",
    "ref_model_sync_steps": "the reference is the model at the start",
    "sync_ref_model": "the reference is the model at the start",
}

DPO_DEFAULTS: Tree = {
    "learning_rate": 1e-6,
    "loss_type": ["sigmoid"],
    "beta": 0.1,
    "label_smoothing": 0.0,
    "f_divergence_type": "reverse_kl",
    "use_weighting": False,
}
DPO_COMPOSED = {
    "loss_type": "`dpo.loss.type`: sigmoid, sigmoid_norm, ipo, robust; sft beside one of them is "
    "`dpo.loss.nll_coef`",
    "loss_weights": "`dpo.loss.nll_coef`: the weight of sft, divided by that of the other",
    "beta": "`dpo.loss.beta`",
    "label_smoothing": "`dpo.loss.label_smoothing`, with robust",
    "f_divergence_type": "reverse_kl; others are noted",
    "use_weighting": "none: pairs have one weight",
    "ld_alpha": "none: tokens have one weight",
}
DPO_UNNEEDED = {"f_alpha_divergence_coef": _ONE_KIND, "discopop_tau": _ONE_KIND}
DPO_LOSSES = ("sigmoid", "sigmoid_norm", "ipo", "robust")
DPO_SETTINGS = {
    "loss_type": ("dpo.loss.type",),
    "loss_weights": ("dpo.loss.nll_coef",),
    "beta": ("dpo.loss.beta",),
    "label_smoothing": ("dpo.loss.label_smoothing",),
    "per_device_train_batch_size": ("data.train_batch_size",),
    "learning_rate": ("optimizer.lr",),
}

KTO_DEFAULTS: Tree = {
    "learning_rate": 1e-6,
    "loss_type": "kto",
    "beta": 0.1,
    "desirable_weight": 1.0,
    "undesirable_weight": 1.0,
}
KTO_RENAMED = {
    "beta": "dpo.loss.beta",
    "desirable_weight": "dpo.loss.desirable_weight",
    "undesirable_weight": "dpo.loss.undesirable_weight",
}
KTO_COMPOSED = {"loss_type": "`dpo.loss.type=kto`"}
KTO_SETTINGS = {
    "loss_type": ("dpo.loss.type",),
    "beta": ("dpo.loss.beta",),
    "desirable_weight": ("dpo.loss.desirable_weight",),
    "undesirable_weight": ("dpo.loss.undesirable_weight",),
    "per_device_train_batch_size": ("data.train_batch_size",),
    "learning_rate": ("optimizer.lr",),
}

SFT_DEFAULTS: Tree = {"learning_rate": 2e-5, "loss_type": "nll"}
SFT_COMPOSED = {
    "loss_type": "nll: the mean over the tokens of the answers",
    "packing": "none: sequences are always packed, but a batch counts rows",
    "completion_only_loss": "none: the loss is always of the answers only",
    "assistant_only_loss": "none: the loss is always of the answers only",
}
SFT_UNNEEDED = {
    "packing_strategy": "sequences are always packed, and no one sees another",
    "eval_packing": "sequences are always packed, and no one sees another",
}
SFT_SETTINGS = {
    "per_device_train_batch_size": ("data.train_batch_size",),
    "learning_rate": ("optimizer.lr",),
}

REWARD_DEFAULTS: Tree = {"learning_rate": 1e-4}
REWARD_COMPOSED = {"center_rewards_coefficient": "none: rewards are not centred"}
REWARD_SETTINGS = {
    "center_rewards_coefficient": ("rm.type",),
    "per_device_train_batch_size": ("data.train_batch_size",),
    "learning_rate": ("optimizer.lr",),
}
