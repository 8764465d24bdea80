"""The ``model`` and ``optimizer`` sections."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Discriminator, Field, Tag, field_validator, model_validator

from mmr1.section import (
    TRAINING,
    AutoDtype,
    Coefficient,
    Count,
    Dtype,
    Need,
    Positive,
    Section,
    check_patterns,
    variant_in,
)


def _averaged_adapters(c: Any) -> bool:
    alpha = getattr(c.algorithm.reference, "mixup_alpha", 1.0)
    return c.model.lora is not None and alpha < 1


def _adapters_alone(c: Any) -> bool:
    lora = c.model.lora
    if lora is None or lora.merge:
        return False
    return not c.model.freeze_vision_tower or lora.load_in_4bit


VISION = frozenset(("vision_tower", "multi_modal_projector"))


class LoraConfig(Section):
    """LoRA adapters. Only they are trained; the weights of the model are frozen."""

    needs: ClassVar[tuple[Need, ...]] = (
        Need(
            ("model.lora", "algorithm.kl.reference.mixup_alpha"),
            _averaged_adapters,
            "LoRA adapters cannot be averaged; leave one of them out",
            (
                "model.lora.rank=4",
                "algorithm.kl.coef=1",
                "algorithm.kl.reference.type=moving",
                "algorithm.kl.reference.sync_steps=5",
                "algorithm.kl.reference.mixup_alpha=0.5",
            ),
        ),
        Need(
            ("model.lora", "optimizer.lr_of_parts"),
            lambda c: c.model.lora is not None and bool(c.optimizer.frozen_parts),
            "adapters are trained and no other weight is; name the adapted layers in "
            "model.lora.target_modules, and leave rates of 0 out",
            ("model.lora.rank=4", "optimizer.lr_of_parts.language_model=0"),
            commands=TRAINING,
            command="sft",
        ),
        Need(
            ("model.lora.merge", "model.freeze_vision_tower", "model.lora.load_in_4bit"),
            _adapters_alone,
            "vLLM adds no adapters to a vision tower, and none to weights in 4 bits; leave "
            "model.lora.merge out, or change that",
            ("model.lora.merge=false",),
        ),
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
    dropout: float = Field(
        0.0, ge=0, lt=1, description="Dropout on the input of the adapters, during updates only"
    )

    @classmethod
    def variant_of(cls, values: Mapping[str, Any]) -> str:
        """The variant: new adapters, or those of a ``path``."""
        return "stored" if values.get("path") is not None else "new"

    def as_new(self) -> NewLoraConfig:
        """New adapters, of the default shape where these are stored ones."""
        if isinstance(self, NewLoraConfig):
            return self
        return NewLoraConfig(load_in_4bit=self.load_in_4bit, merge=self.merge, dropout=self.dropout)


class NewLoraConfig(LoraConfig):
    """Adapters that begin at zero."""

    variant: ClassVar[str] = "new"
    rank: Positive = Field(16, description="Rank of the adapters (PEFT: r)")
    alpha: Coefficient = Field(
        32.0, description="Adapters are scaled by alpha / rank (PEFT: lora_alpha)"
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


class StoredLoraConfig(LoraConfig):
    """Adapters to start from. Rank, alpha and adapted layers are theirs."""

    variant: ClassVar[str] = "stored"
    path: str = Field(
        description="Folder of adapters as PEFT saves them, such as a checkpoint's folder adapter"
    )


def _lora_tag(value: Any) -> str | None:
    return LoraConfig.variant_of(value) if isinstance(value, Mapping) else variant_in(value)


Lora = Annotated[
    Annotated[NewLoraConfig, Tag("new")] | Annotated[StoredLoraConfig, Tag("stored")],
    Discriminator(_lora_tag),
]


class ModelConfig(Section):
    """The policy."""

    needs: ClassVar[tuple[Need, ...]] = (
        Need(
            ("model.freeze_vision_tower", "optimizer.lr_of_parts"),
            lambda c: c.model.freeze_vision_tower and bool(VISION & c.optimizer.lr_of_parts.keys()),
            "the first freezes the tower and its projector; leave one of them out. lr_of_parts="
            "{vision_tower: 0} freezes the tower alone, {multi_modal_projector: 0} the projector",
            ("model.freeze_vision_tower=true", "optimizer.lr_of_parts.vision_tower=0"),
            commands=TRAINING,
            command="sft",
        ),
    )

    path: str = Field(description="Model directory, or model name on the Hugging Face Hub")
    dtype: AutoDtype = Field(
        "bfloat16",
        description="Data type of the weights; with bfloat16 the optimizer keeps a float32 copy. "
        "auto: bfloat16 on a GPU, and on a CPU that has instructions for it",
    )
    freeze_vision_tower: bool = Field(
        False,
        description="Do not train the vision tower and its projector; their features are kept. One "
        "of the two alone: optimizer.lr_of_parts",
    )
    gradient_checkpointing: bool | Annotated[int, Field(ge=1)] = Field(
        False,
        description="Recompute activations in the backward pass: less memory, 4/3 of the work. A "
        "number: of so many layers of the language model (Megatron: recompute_num_layers), and of "
        "the vision tower",
    )
    use_liger_kernel: bool | None = Field(
        None,
        description="Norms, gated MLPs and rotary embeddings by Liger-Kernel's fused kernels (TRL: "
        "use_liger_kernel); null: on a GPU, where it is installed",
    )
    sharing: Literal["auto", "packed", "padded"] = Field(
        "auto",
        description="Share the prompt among completions, for models that have no family here. "
        "auto: if a probe at the start finds the packed forward equal to transformers' own; "
        "packed: or refuse the model; padded: never",
    )
    trust_remote_code: bool = Field(
        False,
        description="Run the Python code that models bring along (auto_map). That is the code of "
        "every model that the configuration names, in every process that loads one; read it first",
    )
    lora: Lora | None = Field(
        None, description="Train LoRA adapters instead of the weights; {} takes the defaults"
    )

    @property
    def sync_adapters_only(self) -> bool:
        """True if rollout engines get the adapters alone, not merged weights."""
        return self.lora is not None and not self.lora.merge


class _Schedule(Section):
    warmup_steps: Count | Annotated[float, Field(ge=0, lt=1)] = Field(
        10, description="Optimizer steps of linear warm-up; below 1: a share of all steps"
    )


class _Falling(_Schedule):
    min_lr: float = Field(0.0, ge=0, description="Learning rate at the end")
    steps: Positive | None = Field(
        None, description="Optimizer steps until the end of the schedule; null: those of the run"
    )


class ConstantSchedule(_Schedule):
    """A learning rate that stays after the warm-up."""

    type: Literal["constant"] = "constant"


class LinearSchedule(_Falling):
    """A learning rate that falls to ``min_lr`` on a line."""

    type: Literal["linear"] = "linear"


class CosineSchedule(_Falling):
    """A learning rate that falls to ``min_lr`` on half a cosine."""

    type: Literal["cosine"] = "cosine"


Schedule = Annotated[
    ConstantSchedule | LinearSchedule | CosineSchedule, Field(discriminator="type")
]


class OptimizerConfig(Section):
    """AdamW."""

    lr: Coefficient = Field(
        1e-6,
        description="Learning rate after the warm-up. If it is not set: 1e-6 for mmr1 train, 2e-5 "
        "for mmr1 sft, and what other commands declare; with model.lora ten times that",
    )
    betas: tuple[float, float] = Field((0.9, 0.999), description="Adam's beta1 and beta2")
    weight_decay: float = Field(0.0, ge=0, description="Decoupled weight decay")
    decay_norms_and_biases: bool = Field(
        True,
        description="Weight decay of norms and biases too, as in verl and EasyR1; false: of "
        "matrices alone, as in TRL and OpenRLHF",
    )
    lr_of_parts: dict[str, Annotated[float, Field(ge=0)]] = Field(
        default_factory=dict,
        description="Learning rates of parts in place of lr; 0 freezes. Parts are language_model, "
        "vision_tower, multi_modal_projector, or regular expressions that are searched in the "
        "names of parameters; the last that fits counts",
    )
    max_grad_norm: Coefficient = Field(1.0, description="Gradients are clipped to this global norm")
    state_dtype: Dtype = Field(
        "float32", description="Data type of the optimizer state; bfloat16 uses stochastic rounding"
    )
    offload: bool = Field(
        False,
        description="Keep float32 weights and optimizer state in CPU memory, and run AdamW there",
    )
    scheduler: Schedule = Field(
        default_factory=ConstantSchedule,
        description="Learning rate over the steps; for mmr1 sft and other commands that learn from "
        "records linear is the default",
    )

    @field_validator("lr_of_parts")
    @classmethod
    def _are_patterns(cls, rates: dict[str, float]) -> dict[str, float]:
        check_patterns(rates)
        return rates

    @model_validator(mode="after")
    def _falls(self) -> OptimizerConfig:
        if self.min_lr > self.lr:
            raise ValueError(
                f"scheduler.min_lr={self.min_lr:g} is above lr={self.lr:g}, and no schedule rises; "
                "lower it"
            )
        return self

    @property
    def min_lr(self) -> float:
        """The learning rate at the end of a schedule that falls; 0 for a constant one."""
        return 0.0 if isinstance(self.scheduler, ConstantSchedule) else self.scheduler.min_lr

    @property
    def frozen_parts(self) -> tuple[str, ...]:
        """The parts, or patterns of parameters, that are not trained: those of rate 0."""
        return tuple(part for part, rate in self.lr_of_parts.items() if rate == 0)
