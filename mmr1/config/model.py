"""The policy and what trains it: ``model`` and ``optimizer``."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field, field_validator

from mmr1.config.section import Dtype, Positive, Section


class LoraConfig(Section):
    """Low-rank adapters: they are trained, the model's own weights are not."""

    rank: Positive = 16
    alpha: float = Field(32.0, gt=0, description="The adapters are scaled by alpha / rank")
    dropout: float = Field(0.0, ge=0, lt=1, description="Of the adapters' input, in updates only")
    target_modules: Literal["all-linear"] | tuple[str, ...] = Field(
        "all-linear",
        min_length=1,
        description="Last names of the adapted layers; a frozen vision tower has none",
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

    path: str = Field(description="A Hugging Face model directory or hub name")
    dtype: Dtype = "bfloat16"
    freeze_vision_tower: bool = Field(False, description="Keep the vision tower as it is")
    gradient_checkpointing: bool = Field(
        False, description="Compute activations again in the backward pass: less memory, 4/3 work"
    )
    lora: LoraConfig | None = Field(None, description="Train adapters only; {} for the defaults")


class OptimizerConfig(Section):
    """AdamW."""

    lr: float = Field(1e-6, gt=0)
    betas: tuple[float, float] = (0.9, 0.999)
    weight_decay: float = Field(0.0, ge=0)
    warmup_steps: int = Field(10, ge=0)
    lr_scheduler_type: Literal["linear", "constant", "cosine"] = "linear"
    max_grad_norm: float = Field(1.0, gt=0)
    state_dtype: Dtype = Field(
        "float32", description="How AdamW's moments are kept; bfloat16 is rounded at random"
    )
    offload: bool = Field(
        False, description="Keep float32 weights and moments in main memory and step there"
    )
