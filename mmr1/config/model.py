"""The ``model`` and ``optimizer`` sections."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Annotated, Any, Literal

from pydantic import Field, field_validator, model_validator

from mmr1.config.section import AutoDtype, Dtype, Fraction, Positive, Section


def _default(section: type[Section], key: str) -> Any:
    return section.model_fields[key].default


class LoraConfig(Section):
    """LoRA adapters. Only they are trained; the weights of the model are frozen."""

    path: str | None = Field(
        None,
        description="Adapters to start from, as PEFT saves them, such as a checkpoint's folder "
        "adapter. Rank, alpha and adapted layers are then theirs; default: new ones",
    )
    load_in_4bit: bool = Field(
        False,
        description="QLoRA: keep the weights below the adapters in 4 bits (NF4, double "
        "quantization), by bitsandbytes",
    )
    merge: bool = Field(
        True,
        description="Rollout engines get weights with the adapters merged. false: vLLM gets the "
        "adapters alone and adds them itself; for a frozen vision tower",
    )
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

    @model_validator(mode="after")
    def _own_shape(self) -> LoraConfig:
        given = self.model_fields_set & {"rank", "alpha", "target_modules"}
        changed = [key for key in sorted(given) if getattr(self, key) != _default(type(self), key)]
        if self.path is not None and changed:
            raise ValueError(
                f"model.lora.path and {', '.join(changed)}: adapters that exist have a rank, an "
                "alpha and layers of their own; leave these keys out"
            )
        return self

    @property
    def starts_apart(self) -> bool:
        """Does the policy begin as another model than the files of ``model.path`` have?"""
        return self.path is not None or self.load_in_4bit

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
    dtype: AutoDtype = Field(
        "bfloat16",
        description="Data type of the weights; with bfloat16 the optimizer keeps a float32 copy. "
        "auto: bfloat16 on a GPU, and on a CPU that has instructions for it",
    )
    freeze_vision_tower: bool = Field(False, description="Do not train the vision tower")
    freeze: tuple[str, ...] = Field(
        (),
        description="Parts that are not trained: language_model, multi_modal_projector, or regular "
        "expressions that are searched in the names of parameters",
    )
    gradient_checkpointing: bool = Field(
        False,
        description="Recompute activations in the backward pass: less memory, 4/3 of the work",
    )
    lora: LoraConfig | None = Field(
        None, description="Train LoRA adapters instead of the weights; {} takes the defaults"
    )

    @field_validator("freeze")
    @classmethod
    def _are_patterns(cls, parts: tuple[str, ...]) -> tuple[str, ...]:
        if "vision_tower" in parts:
            raise ValueError(
                "the tower, its projector included, is frozen by model.freeze_vision_tower, which "
                "also keeps its features; leave vision_tower out"
            )
        check_patterns(parts)
        return parts

    @model_validator(mode="after")
    def _freeze_or_adapt(self) -> ModelConfig:
        if self.lora is not None and self.freeze:
            raise ValueError(
                "model.freeze and model.lora: adapters are trained and no other weight is; name "
                "the adapted layers in model.lora.target_modules, and leave model.freeze out"
            )
        return self


class OptimizerConfig(Section):
    """AdamW."""

    lr: float = Field(1e-6, gt=0, description="Learning rate after the warm-up")
    betas: tuple[float, float] = Field((0.9, 0.999), description="Adam's beta1 and beta2")
    weight_decay: float = Field(0.0, ge=0, description="Decoupled weight decay")
    lr_of_parts: dict[str, Annotated[float, Field(ge=0)]] = Field(
        default_factory=dict,
        description="Learning rates of parts in place of lr: language_model, vision_tower, "
        "multi_modal_projector, or regular expressions that are searched in the names of "
        "parameters. The last that fits counts",
    )
    warmup_steps: int = Field(10, ge=0, description="Optimizer steps of linear warm-up")
    warmup_ratio: Fraction | None = Field(
        None, description="Warm-up as a share of all optimizer steps, instead of warmup_steps"
    )
    lr_scheduler_type: Literal["linear", "constant", "cosine"] = Field(
        "linear", description="Schedule after the warm-up; linear and cosine decay to min_lr"
    )
    min_lr: float = Field(0.0, ge=0, description="lr at the end of the schedule")
    max_grad_norm: float = Field(1.0, gt=0, description="Gradients are clipped to this global norm")
    state_dtype: Dtype = Field(
        "float32", description="Data type of the optimizer state; bfloat16 uses stochastic rounding"
    )
    offload: bool = Field(
        False,
        description="Keep float32 weights and optimizer state in CPU memory, and run AdamW there",
    )

    @field_validator("lr_of_parts")
    @classmethod
    def _are_patterns(cls, rates: dict[str, float]) -> dict[str, float]:
        check_patterns(rates)
        return rates

    @model_validator(mode="after")
    def _decays(self) -> OptimizerConfig:
        if self.min_lr > self.lr:
            raise ValueError(
                f"min_lr={self.min_lr:g} is above lr={self.lr:g}, and no schedule rises; lower it"
            )
        return self


def check_patterns(patterns: Iterable[str]) -> None:
    """Raises ValueError for a regular expression that is none."""
    for pattern in patterns:
        try:
            re.compile(pattern)
        except re.error as error:
            raise ValueError(f"'{pattern}' is no regular expression: {error}") from None
