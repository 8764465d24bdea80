"""How completions are sampled: ``rollout`` and ``eval``."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from mmr1.config.section import Dtype, Fraction, Positive, Section


class SamplingConfig(Section):
    """How completions are sampled."""

    temperature: float = Field(1.0, ge=0)
    top_p: float = Field(1.0, gt=0, le=1)
    top_k: int = Field(0, ge=0, description="0 keeps the whole vocabulary")
    min_p: Fraction = Field(0.0, description="Least probability, as a share of the highest")
    stop: tuple[str, ...] = Field((), description="Texts that end a completion; they stay in it")
    max_tokens: Positive = 1024

    def greedy(self) -> SamplingConfig:
        """The same limits, the most probable token at every step."""
        return self.model_copy(update={"temperature": 0.0, "top_p": 1.0, "top_k": 0})


class EvalConfig(Section):
    """Evaluation on ``data.eval`` (``mmr1 eval``, and at the end of ``mmr1 train``)."""

    n: int = Field(1, ge=0, description="Sampled completions per prompt, beside the greedy")
    temperature: float = Field(1.0, gt=0, description="Of the sampled completions")
    batch_size: Positive = Field(128, description="Prompts given to the engine at once")
    limit: Positive | None = Field(None, description="Only the first records")
    accuracy_function: str | None = Field(
        None, description="Reward part whose 1.0 means right; default: the first but 'format'"
    )
    accuracy_thresholds: list[float] = Field(
        [1.0],
        description="Values of that part from which an answer is right; the first makes the "
        "accuracy. Empty: its mean does",
    )
    group_by: str | None = Field(
        None, description="Record key to break results down by; else the task"
    )
    prompt: Literal["reason", "direct"] | None = Field(
        None, description="Ask for reasoning, or for the answer alone; else data.prompt_template"
    )
    models: dict[str, str] = Field(
        default_factory=dict, description="Names and paths of several models; else model.path"
    )
    data: dict[str, str] = Field(
        default_factory=dict,
        description="Names and records of several datasets, a benchmark's name brings its scoring; "
        "else data.eval",
    )
    output_dir: str | None = Field(
        None, description="Folder for results and completions; an interrupted one is continued"
    )


class RolloutConfig(Section):
    """The engine that samples completions during training."""

    engine: Literal["vllm", "hf"] = "vllm"
    dtype: Dtype | None = Field(
        None, description="Of vLLM's weights and arithmetic; default: model.dtype"
    )
    n: Positive = Field(8, description="Group size: completions per prompt")
    batch_size: Positive = Field(16, description="Prompts per step")
    sampling: SamplingConfig = SamplingConfig()
    max_model_len: Positive = Field(4096, description="Longest prompt and completion together")
    gpu_memory_utilization: Fraction = 0.5
    tensor_parallel_size: Positive = 1
    max_vision_tokens: Positive = Field(
        65536,
        description="Of prompts that vLLM works on at a time (19 KB of patches each); others wait",
    )
    cpu_kv_cache_gib: Positive = 1
    timeout_s: float = Field(
        3600, gt=0, description="An engine that takes longer for one batch is taken to hang"
    )
    max_off_policy_steps: int = Field(
        0, ge=0, description="Steps that rollouts run ahead of the update; their bound of staleness"
    )
    deterministic: bool = Field(
        False,
        description="The same step samples the same tokens: vLLM gets all prompts together and, on "
        "a GPU, its batch-invariant kernels",
    )
    max_restarts: int = Field(
        3, ge=0, description="How often in a run an engine that died or hung is replaced"
    )
    parity_tolerance: float | None = Field(
        None,
        gt=0,
        description="Log-prob gap allowed at start-up: in float32 of any token, default 1e-4; "
        "where engine or trainer is bf16 on average, default 0.1",
    )
