"""The ``rollout`` and ``eval`` sections."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field, ValidationInfo, field_validator

from mmr1.config.section import AutoDtype, Fraction, Positive, Section
from mmr1.registry import ENGINES


class SamplingConfig(Section):
    """Sampling parameters."""

    temperature: float = Field(1.0, ge=0, description="Sampling temperature, above 0")
    top_p: float = Field(1.0, gt=0, le=1, description="Nucleus sampling; 1: off")
    top_k: int = Field(0, ge=0, description="Sample from the k most probable tokens; 0: off")
    min_p: Fraction = Field(
        0.0, description="Minimum probability relative to the most probable token; 0: off"
    )
    stop: tuple[str, ...] = Field((), description="Stop strings; they stay in the completion")
    max_tokens: Positive = Field(
        1024, description="Maximum completion length in tokens (TRL: max_completion_length)"
    )

    def greedy(self) -> SamplingConfig:
        """The same limits, with greedy decoding."""
        return self.model_copy(update={"temperature": 0.0, "top_p": 1.0, "top_k": 0})


class EvalConfig(Section):
    """Evaluation (``mmr1 eval``, and at the end of ``mmr1 train``)."""

    n: int = Field(1, ge=0, description="Sampled completions per prompt, besides the greedy one")
    temperature: float = Field(1.0, gt=0, description="Temperature of the sampled completions")
    batch_size: Positive = Field(128, description="Prompts per engine call")
    limit: Positive | None = Field(
        None, description="Evaluate the first records only; default: all"
    )
    accuracy_function: str | None = Field(
        None,
        description="Reward function that decides what is right; default: the first one not named "
        "format",
    )
    accuracy_thresholds: list[float] = Field(
        [1.0],
        description="An answer is right from this value of accuracy_function on. The first "
        "threshold "
        "gives the accuracy. Empty: the mean value is the accuracy",
    )
    best_of: str | None = Field(
        None,
        description="Reward function that picks one of the n sampled completions: best-of-n",
    )
    group_by: str | None = Field(
        None, description="Record key to group results by; default: the task"
    )
    prompt: Literal["reason", "direct"] | None = Field(
        None,
        description="Prompt for reasoning, or for the answer only; default: data.prompt_template",
    )
    models: dict[str, str] = Field(
        default_factory=dict, description="Models to evaluate, as name: path; default: model.path"
    )
    data: dict[str, str] = Field(
        default_factory=dict,
        description="Datasets to evaluate on, as name: records. A benchmark's name selects its "
        "prompt "
        "and scoring. Default: data.eval",
    )
    output_dir: str | None = Field(
        None,
        description="Folder for results and completions. An interrupted evaluation resumes from it",
    )


class RolloutConfig(Section):
    """The rollout engine, which samples completions."""

    engine: str = Field(
        "vllm", description="vllm, hf (transformers), or an engine of your own as file.py:NAME"
    )
    dtype: AutoDtype | None = Field(
        None,
        description="Data type of vLLM's weights and computation; auto: as for model.dtype; "
        "default: model.dtype",
    )
    n: Positive = Field(8, description="Group size: completions per prompt (TRL: num_generations)")
    batch_size: Positive = Field(16, description="Prompts per step (EasyR1: rollout_batch_size)")
    sampling: SamplingConfig = SamplingConfig()
    max_model_len: Positive = Field(
        4096, description="Maximum tokens of prompt and completion together"
    )
    gpu_memory_utilization: Fraction | None = Field(
        None,
        description="Share of the GPU memory that vLLM may use; default: 0.9 on Ray, where each "
        "engine has GPUs of its own, and 0.5 where it shares the trainer's (one process, "
        "resources.colocate)",
    )
    tensor_parallel_size: Positive = Field(1, description="GPUs per vLLM engine")
    max_vision_tokens: Positive = Field(
        65536,
        description="Maximum vision tokens of the prompts that vLLM processes at a time, about 19 "
        "KB "
        "of patches each. Other prompts wait",
    )
    cpu_kv_cache_gib: Positive = Field(1, description="vLLM's KV cache on a CPU, in GiB")
    timeout_s: float = Field(
        3600, gt=0, description="Seconds allowed for one batch; a slower engine counts as hung"
    )
    max_off_policy_steps: int = Field(
        0,
        ge=0,
        description="0: synchronous rollouts. k: asynchronous rollouts, sampled with weights that "
        "are "
        "at most k updates old",
    )
    deterministic: bool = Field(
        False,
        description="The same seed samples the same tokens. vLLM waits for all prompts of the "
        "step, "
        "and on a GPU uses its batch-invariant kernels",
    )
    max_restarts: int = Field(
        3, ge=0, description="Restarts of a crashed or hung engine, in one run"
    )
    parity_tolerance: float | None = Field(
        None,
        gt=0,
        description="Maximum log-prob gap between engine and trainer at start-up, in nats. "
        "Float32: "
        "of each token, default 1e-4. Bfloat16: mean per prompt, default 0.1",
    )

    @field_validator("engine")
    @classmethod
    def _engine_is_known(cls, value: str) -> str:
        ENGINES.check(value)
        return value

    @field_validator("dtype", mode="before")
    @classmethod
    def _auto_is_the_models(cls, value: Any, info: ValidationInfo) -> Any:
        """transformers samples from the model as it is."""
        return None if value == "auto" and info.data.get("engine") == "hf" else value
