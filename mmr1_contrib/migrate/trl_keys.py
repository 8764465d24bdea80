"""TRL's keys: their defaults, what they are called here, and those that are not needed.

Keys and defaults are those of TRL 1.16.0 (``GRPOConfig``, ``RLOOConfig``, ``DPOConfig``,
``SFTConfig``, ``ModelConfig`` and the arguments of its scripts) and of the ``TrainingArguments`` of
transformers 5.
"""

from __future__ import annotations

from mmr1_contrib.migrate.migration import Tree, because

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
    **because(
        _PROCESSES, "",
        "ignore_bias_buffers ddp_find_unused_parameters deepspeed fsdp fsdp_config "
        "parallelism_config local_rank accelerator_config ddp_backend ddp_broadcast_buffers "
        "ddp_bucket_cap_mb ddp_static_graph",
    ),
    "datasets": "data.train takes several files with weights",
    "trust_remote_code": "model.trust_remote_code, once you have read the code",
    "attn_implementation": "the fastest one that is installed is used",
    "model_init_kwargs": "model.dtype and the configuration of model.path",
    "quantization_config": "weights are not quantised",
    "load_in_8bit": "model.lora.load_in_4bit quantises to 4 bits",
    **because(
        "NF4, with model.lora.load_in_4bit", "",
        "bnb_4bit_quant_type bnb_4bit_quant_storage",
    ),
    "use_bnb_nested_quant": "double quantization, with model.lora.load_in_4bit",
    "lora_task_type": "the task is that of the command",
    "lora_target_parameters": "layers are adapted by name, in model.lora.target_modules",
    "lora_modules_to_save": "adapters are trained and no other weight is",
    "use_rslora": "alpha is divided by the rank; set model.lora.alpha to alpha * sqrt(rank)",
    "use_dora": "adapters are plain LoRA",
    "router_aux_loss_coef": "set algorithm.router_aux_loss_coef, for models with experts",
    "disable_dropout": "the model's own dropout is always off; `model.lora.dropout` is kept",
    "remove_unused_columns": "reward functions get the columns that they name",
    **because(
        _SPEED, "",
        "pad_to_multiple_of activation_offloading use_liger_kernel torch_empty_cache_steps "
        "gradient_checkpointing_kwargs torch_compile tf32 bf16_full_eval dataloader_pin_memory "
        "dataloader_prefetch_factor dataloader_persistent_workers use_cache liger_kernel_config "
        "torch_compile_backend torch_compile_mode fp16_full_eval half_precision_backend "
        "dataloader_multiprocessing_context dataloader_in_order",
    ),
    **because("the tokenizer is that of model.path", "", "pad_token eos_token"),
    "padding_free": "sequences are always packed",
    "fp16": "model.dtype is bfloat16 or float32",
    "data_seed": "seed is that of everything",
    "dataset_num_proc": "rows are read without worker processes",
    **because("the format of the rows tells what they are", "", "dataset_kwargs label_names"),
    "dataloader_drop_last": "an epoch ends with the last rows",
    "ddp_timeout": "resources.collective_timeout_s",
    "include_num_input_tokens_seen": "the number of tokens is always logged",
    **because("metrics.jsonl has every step", "", "logging_strategy logging_first_step"),
    "logging_dir": "trainer.output_dir",
    **because(
        "a matter of display alone", "",
        "log_level disable_tqdm log_on_each_node log_level_replica skip_memory_metrics debug",
    ),
    **because(
        "trackers read their own variables of the environment", "",
        "trackio_space_id trackio_bucket_id trackio_static_space_id",
    ),
    "per_device_eval_batch_size": "prompts are evaluated in parts, which does not change the "
    "result",
    "do_eval": "see eval_strategy",
    **because("mmr1 eval evaluates without training", "", "do_train do_predict"),
    "load_best_model_at_end": "trainer.checkpoints.metric_for_best_model keeps the best checkpoint",
    "metric_for_best_model": "trainer.checkpoints.metric_for_best_model has our names of metrics",
    "greater_is_better": "see metric_for_best_model",
    "resume_from_checkpoint": "mmr1 train --resume continues a run",
    "overwrite_output_dir": "a folder with a run is never overwritten",
    **because(
        "mmr1 export --push-to-hub uploads a checkpoint", "",
        "push_to_hub hub_model_id hub_strategy hub_token hub_private_repo hub_always_push "
        "hub_revision",
    ),
    "env": "variables of the environment are the shell's",
    "use_cpu": "a GPU is used where there is one",
    "optim_args": "optimizer.betas and optimizer.weight_decay; the rest is AdamW's usual",
    "optim_target_modules": "all trained weights have AdamW",
    "label_smoothing_factor": "the cross-entropy is not smoothed",
    "neftune_noise_alpha": "no noise is added to embeddings",
    "average_tokens_across_devices": "a mean over tokens is that of all ranks",
    "auto_find_batch_size": "trainer.max_tokens_per_gpu bounds the memory of a micro-batch",
    "logging_nan_inf_filter": "a loss that is not finite ends the run",
    "eval_delay": "a validation follows every trainer.validation.steps steps from the first",
    **because(
        "a validation samples completions and scores them", "",
        "prediction_loss_only include_for_metrics batch_eval_metrics eval_accumulation_steps "
        "eval_do_concat_batches eval_use_gather_object",
    ),
    "save_on_each_node": "checkpoints are in trainer.output_dir",
    "save_safetensors": "checkpoints are always safetensors",
    "enable_jit_checkpoint": "SIGTERM always saves the step",
    "ignore_data_skip": "a resumed run continues with the next samples",
    "restore_callback_states_from_checkpoint": "there are no callbacks",
    **because(
        "the data are always shuffled, by seed", "",
        "length_column_name group_by_length train_sampling_strategy",
    ),
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
    **because(
        _SPEED, "",
        "ds3_gather_for_generation cache_implementation vllm_enable_prefix_caching "
        "vllm_model_impl vllm_enable_sleep_mode use_transformers_continuous_batching "
        "transformers_continuous_batching_config use_transformers_paged",
    ),
    **because(
        _PROCESSES, "",
        "vllm_mode vllm_device vllm_server_base_url vllm_server_host vllm_server_port "
        "vllm_group_port",
    ),
    "vllm_dtype": "rollout.engine.dtype, which is that of the model unless it is set",
    "vllm_structured_outputs_regex": "completions are not bound to a grammar",
    "vllm_server_timeout": "rollout.timeout_s",
    **because(
        "rollouts/ holds the completions", "",
        "log_completions log_multimodal log_unique_prompts num_completions_to_print "
        "log_completions_hub_repo",
    ),
}  # fmt: skip

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


RLOO_DEFAULTS: Tree = {
    "num_generations": 2,
    "beta": 0.05,
    "normalize_advantages": False,
}
RLOO_RENAMED = {"reward_clip_range": "algorithm.advantage.reward_clip_range"}
RLOO_COMPOSED = {"normalize_advantages": "none: advantages are not divided by their deviation"}

# --- DPO and SFT ----------------------------------------------------------------------------------

OFFLINE_DEFAULTS: Tree = {"max_length": 1024}
OFFLINE_COMPOSED = {
    "max_length": "none: rows are not cut; prompts that are too long are left out, and listed",
    "truncation_mode": "none: rows are not cut",
}
OFFLINE_UNNEEDED = {
    **because(_SPEED, "", "precompute_ref_log_probs precompute_ref_batch_size"),
    "chat_template_path": "data.chat_template, a .jinja file",
    "dataset_text_field": "the format of the rows tells what they are",
    "shuffle_dataset": "the data are always shuffled, by seed",
    **because(
        "the reference is the model at the start", "",
        "ref_model_mixup_alpha ref_model_sync_steps sync_ref_model",
    ),
}  # fmt: skip

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
