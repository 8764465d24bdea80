"""The configuration tree: one pydantic model per section, every default lives here.

A YAML file is read first, then ``key.path=value`` overrides, both through OmegaConf (so
interpolations work); then pydantic checks the whole. Unknown keys are refused.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

Fraction = Annotated[float, Field(ge=0, le=1)]
Positive = Annotated[int, Field(gt=0)]


class Section(BaseModel):
    """Shared strictness: unknown keys are errors, values are not changed after loading."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class ModelConfig(Section):
    """The policy."""

    path: str = Field(description="A Hugging Face model directory or hub name")
    dtype: Literal["float32", "bfloat16"] = "bfloat16"
    freeze_vision: bool = Field(False, description="Keep the vision tower as it is")


class DataConfig(Section):
    """Where the samples are and how they become prompts."""

    train: str | None = Field(None, description="Training records")
    eval: str | None = Field(None, description="Held-out records")
    system_prompt: str | None = Field(None, description="Put before every conversation")
    media_root: str | None = Field(
        None,
        description="Folder of the media paths; by default that of the record file",
    )


class RewardPartConfig(Section):
    """One named, weighted part of the reward."""

    use: str | None = Field(
        None,
        description="Built-in name, file.py:function or dotted path; default: the part's name",
    )
    weight: float = 1.0
    options: dict[str, Any] = Field(default_factory=dict, description="Its keyword options")


class RewardsConfig(Section):
    """The weighted sum of named parts, and the pool of processes that verifies answers."""

    parts: dict[str, RewardPartConfig] = Field(
        default_factory=lambda: {
            "format": RewardPartConfig(weight=0.5),
            "math": RewardPartConfig(weight=1.0),
        },
        min_length=1,
    )
    workers: Positive = Field(2, description="Verifier processes")
    timeout_s: float = Field(2.0, gt=0, description="Deadline of one verdict")
    max_invalid_fraction: Fraction = Field(
        0.2, description="The run stops when more of a step's completions have no valid reward"
    )


class SamplingConfig(Section):
    """How completions are sampled."""

    temperature: float = Field(1.0, ge=0)
    top_p: float = Field(1.0, gt=0, le=1)
    top_k: int = Field(0, ge=0, description="0 keeps the whole vocabulary")
    max_tokens: Positive = 1024


class EvalConfig(Section):
    """Evaluation on ``data.eval``."""

    batch_size: Positive = 64
    samples: Positive = Field(1, description="Sampled completions per prompt beside the greedy one")
    temperature: float = Field(1.0, ge=0)
    limit: Positive | None = Field(None, description="Only the first records")


class RolloutConfig(Section):
    """The engine that samples completions during training."""

    engine: Literal["vllm", "hf"] = "vllm"
    n: Positive = Field(8, description="Group size: completions per prompt")
    prompts: Positive = Field(16, description="Prompts per step")
    sampling: SamplingConfig = SamplingConfig()
    max_model_len: Positive = Field(4096, description="Longest prompt and completion together")
    gpu_memory_utilization: Fraction = 0.5
    tensor_parallel_size: Positive = 1
    cpu_kv_cache_gib: Positive = 1
    parity_tolerance: float = Field(
        1e-4,
        gt=0,
        description="Largest log-prob gap at start-up, float32; 100 times it in bf16",
    )


class AlgorithmConfig(Section):
    """The advantage and the loss."""

    name: str = "grpo"
    clip_low: float = Field(0.2, ge=0)
    clip_high: float = Field(0.2, ge=0)
    kl_coef: float = Field(0.0, ge=0, description="0 loads no reference policy")
    updates_per_rollout: Positive = 1
    mask_truncated: bool = Field(False, description="Leave truncated completions out of the loss")


class OptimizerConfig(Section):
    """AdamW."""

    lr: float = Field(1e-6, gt=0)
    betas: tuple[float, float] = (0.9, 0.999)
    weight_decay: float = Field(0.0, ge=0)
    warmup_steps: int = Field(10, ge=0)
    schedule: Literal["linear", "constant", "cosine"] = "linear"
    max_grad_norm: float = Field(1.0, gt=0)


class TrainerConfig(Section):
    """How long, where to, how often."""

    max_steps: Positive = 100
    output_dir: str = "runs/run"
    save_every: int = Field(0, ge=0, description="Checkpoint interval in steps; 0: the last only")
    log_rollouts_every: Positive = 10
    threads: Positive | None = Field(None, description="CPU threads of the trainer")
    micro_batch: Positive = Field(64, description="Sequences per forward and backward")


class TrainConfig(Section):
    """``mmr1 train``: reinforcement learning."""

    seed: int = 0
    model: ModelConfig
    data: DataConfig
    rollout: RolloutConfig = RolloutConfig()
    rewards: RewardsConfig = RewardsConfig()
    algorithm: AlgorithmConfig = AlgorithmConfig()
    optimizer: OptimizerConfig = OptimizerConfig()
    trainer: TrainerConfig = TrainerConfig()
    eval: EvalConfig = EvalConfig()


class SftConfig(Section):
    """``mmr1 sft``: supervised fine-tuning on demonstrations."""

    seed: int = 0
    model: ModelConfig
    data: DataConfig
    batch_size: Positive = 32
    optimizer: OptimizerConfig = OptimizerConfig(lr=1e-5)
    trainer: TrainerConfig = TrainerConfig()


class EvaluationConfig(Section):
    """``mmr1 eval``: held-out accuracy of a checkpoint."""

    seed: int = 0
    model: ModelConfig
    data: DataConfig
    rollout: RolloutConfig = RolloutConfig()
    rewards: RewardsConfig = RewardsConfig()
    eval: EvalConfig = EvalConfig()
    output: str | None = Field(None, description="Where to write the JSON result and completions")
