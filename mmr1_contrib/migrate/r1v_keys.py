"""The keys of the forks of R1-V: their defaults, what they are called here, and the rest.

These trainers stand on the TRL of early 2025 (0.14 to 0.17) and transformers 4.49, whose defaults
differ from today's: a KL of 0.04, 256 tokens, a mean over each completion, a ``top_k`` of 50 in
``generate``.
"""

from __future__ import annotations

from mmr1_contrib.migrate import trl_keys as trl
from mmr1_contrib.migrate.migration import Tree

DEFAULTS: Tree = {
    **trl.DEFAULTS,
    "gradient_checkpointing": False,
    "bf16": False,
    "logging_steps": 500,
    "report_to": "all",
    "learning_rate": 1e-6,
    "num_generations": 8,
    "max_prompt_length": 512,
    "max_completion_length": 256,
    "temperature": 0.9,
    "beta": 0.04,
    "use_vllm": False,
    "vllm_gpu_memory_utilization": 0.9,
    "min_pixels": 3136,
    "max_pixels": 12845056,
    "reward_funcs": ["accuracy", "format"],
}
TRL_0_14: Tree = {"per_device_train_batch_size": 1, "gradient_accumulation_steps": 8}
"""TRL 0.14 alone has these; later ones those of transformers."""

CLIPPED: Tree = {"epsilon": 0.2}
ITERATED: Tree = {
    "num_iterations": 1,
    "sync_ref_model": False,
    "ref_model_mixup_alpha": 0.6,
    "ref_model_sync_steps": 512,
}
CUSTOM: Tree = {"is_reward_customized_from_vlm_module": False, "freeze_vision_modules": False}
TEMPORAL: Tree = {"temporal": True, "len_control": True}

RENAMED = {**trl.RENAMED, "num_generations": "rollout.n"}

COMPOSED = {
    **{k: v for k, v in trl.COMPOSED.items() if k != "config"},
    "num_processes": "the processes of torchrun: nnodes x nproc_per_node",
    "per_device_train_batch_size": "`data.train_batch_size`, times num_processes and "
    "gradient_accumulation_steps; it counts prompts, in VLM-R1 from 0.1 on completions",
    "program": "the path of reward functions and of the prompt: PROGRAM:accuracy_reward",
    "max_prompt_length": "`rollout.max_prompt_length`; there the log-probs of a longer prompt are "
    "cut",
    "max_completion_length": "`rollout.max_response_length`",
    "temperature": "`rollout.temperature`, with use_vllm; generate always has 1",
    "beta": "`algorithm.kl.coef`",
    "use_vllm": "`rollout.engine.type`: vllm, else hf, which samples with `rollout.top_k=50`",
    "vllm_gpu_memory_utilization": "`rollout.engine.gpu_memory_utilization`, with use_vllm",
    "reward_funcs": "`rewards`: the functions of the program, by its path",
    "min_pixels": "`data.image.min_pixels`",
    "max_pixels": "`data.image.max_pixels`",
}
FILES_COMPOSED = {
    "data_file_paths": "`data.train`; several files: a mapping to weights",
    "image_folders": "`data.media_root`, if it is one folder",
    "reward_method": "none: a rule of the program's own; rewards has one per function",
}
REC_COMPOSED = {"image_root": "`data.media_root`", **FILES_COMPOSED}
CUSTOM_COMPOSED = {
    **FILES_COMPOSED,
    "freeze_vision_modules": "`model.freeze_vision_tower`",
    "task_type": "the prompt, and the rewards of is_reward_customized_from_vlm_module",
    "is_reward_customized_from_vlm_module": "`rewards`: the functions of vlm_modules",
}
CLIPPED_COMPOSED = {
    "epsilon": "`algorithm.loss.clip_ratio_low`; also the upper bound unless epsilon_high is set",
    "epsilon_high": "`algorithm.loss.clip_ratio_high`",
}
ITERATED_COMPOSED = {
    "num_iterations": "`algorithm.ppo_epochs`",
    **{
        key: trl.ONLINE_COMPOSED[key]
        for key in ("sync_ref_model", "ref_model_mixup_alpha", "ref_model_sync_steps")
    },
}
VIDEO_COMPOSED = {"jsonl_path": "`data.train`, in place of dataset_name"}
TEMPORAL_COMPOSED = {
    "temporal": "rollout.views, and the reward function temporal_contrast with its numbers",
    "len_control": "the reward function length_bonus: 0.2 from 320 to 512 tokens",
}

_UNREAD = "the trainer does not read it"
UNNEEDED = {
    "dataset_config": "name a file, or a dataset without configurations",
    **dict.fromkeys(
        ("top_p", "top_k", "min_p", "repetition_penalty", "cache_implementation",
         "reward_weights", "scale_rewards", "loss_type", "shuffle_dataset"),
        _UNREAD,
    ),
    "arrow_cache_dir": "rows are read from their file by their positions",
    "val_split_ratio": "name a file in trainer.validation.data",
    "max_anyres_num": "tiles of InternVL are those of its processor",
    "vlm_trainer": "there is one trainer",
    "vllm_guided_decoding_regex": "completions are not bound to a grammar",
    **trl.ONLINE_UNNEEDED,
    **trl.UNNEEDED,
}  # fmt: skip
