"""The ``model`` and ``optimizer`` sections."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field, field_validator

from mmr1.config.section import Dtype, Positive, Section


class LoraConfig(Section):
    """LoRA adapters. Only they are trained; the weights of the model are frozen."""

    rank: Positive = Field(16, description="Rank of the adapters (PEFT: r)")
    alpha: float = Field(
        32.0, gt=0, description="Adapters are scaled by alpha / rank (PEFT: lora_alpha)"
    )
    dropout: float = Field(
        0.0, ge=0, lt=1, description="Dropout on the input of the adapters, during updates only"
    )
    target_modules: Literal["all-linear"] | tuple[str, ...] = Field(
        "all-linear",
        min_length=1,
        description="Names of the adapted layers; a frozen vision tower gets no adapters",
    )

    @field_validator("target_modules")
    @classmethod
    def _no_embeddings(cls, names: Any) -> Any:
        for name in ("lm_head", "embed_tokens"):
            if name in names:
                raise ValueError(
                    f"{name} cannot have adapters: log-probs are computed from its plain weight; "
                    "leave it out"
                )
        return names


class ModelConfig(Section):
    """The policy."""

    path: str = Field(description="Model directory, or model name on the Hugging Face Hub")
    dtype: Dtype = Field(
        "bfloat16",
        description="Data type of the weights; with bfloat16 the optimizer keeps a float32 copy",
    )
    freeze_vision_tower: bool = Field(False, description="Do not train the vision tower")
    gradient_checkpointing: bool = Field(
        False,
        description="Recompute activations in the backward pass: less memory, 4/3 of the work",
    )
    lora: LoraConfig | None = Field(
        None, description="Train LoRA adapters instead of the weights; {} takes the defaults"
    )


class OptimizerConfig(Section):
    """AdamW."""

    lr: float = Field(1e-6, gt=0, description="Learning rate after the warm-up")
    betas: tuple[float, float] = Field((0.9, 0.999), description="Adam's beta1 and beta2")
    weight_decay: float = Field(0.0, ge=0, description="Decoupled weight decay")
    warmup_steps: int = Field(10, ge=0, description="Steps of linear warm-up")
    lr_scheduler_type: Literal["linear", "constant", "cosine"] = Field(
        "linear", description="Schedule after the warm-up; linear and cosine decay to 0"
    )
    max_grad_norm: float = Field(1.0, gt=0, description="Gradients are clipped to this global norm")
    state_dtype: Dtype = Field(
        "float32", description="Data type of the optimizer state; bfloat16 uses stochastic rounding"
    )
    offload: bool = Field(
        False,
        description="Keep float32 weights and optimizer state in CPU memory, and run AdamW there",
    )
