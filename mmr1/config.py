"""The configuration tree: one pydantic model per section, every default lives here.

``config_file.py`` reads one. Unknown keys are refused.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from pydantic import Field, field_validator, model_validator

from mmr1.algorithm_config import ALGORITHMS, GROUP_BASELINE, AlgorithmConfig
from mmr1.section import Fraction, Positive, Section

Dtype = Literal["float32", "bfloat16"]
Tracker = Literal["tensorboard", "wandb", "mlflow", "swanlab", "trackio"]


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
    freeze_vision: bool = Field(False, description="Keep the vision tower as it is")
    checkpoint_activations: bool = Field(
        False, description="Compute activations again in the backward pass: less memory, 4/3 work"
    )
    lora: LoraConfig | None = Field(None, description="Train adapters only; {} for the defaults")


class DataConfig(Section):
    """Where the samples are and how they become prompts."""

    train: str | dict[str, float] | None = Field(
        None,
        description="Training data: a file, a folder, a dataset name@split; or several: weight",
    )
    eval: str | None = Field(None, description="Held-out data, named in the same way")
    ptx: str | None = Field(None, description="Demonstrations for the PTX term (ptx_coef)")
    format: str | None = Field(
        None, description="Row form (easyr1, verl, trl, ...); recognised by its keys if not set"
    )
    template: str | None = Field(
        None, description="Prompt template by name (think_answer, boxed, ...) or a .jinja file"
    )
    system_prompt: str | None = Field(None, description="Put before every conversation")
    media_root: str | None = Field(
        None,
        description="Folder of the media paths; by default that of the record file",
    )
    max_bad_fraction: Fraction = Field(
        0.0, description="Share of rows that may be unusable: dropped, counted and named"
    )
    media_workers: int | None = Field(
        None,
        ge=0,
        description="Processes that decode and prepare images and videos; 0: this one does; "
        "default: one for every four cores",
    )
    video_fps: float = Field(2.0, gt=0, description="Frames sampled per second of video")
    video_max_frames: Positive = Field(768, description="Most frames sampled of one video")


class RewardPartConfig(Section):
    """One named, weighted part of the reward."""

    use: str | None = Field(
        None,
        description="Built-in name, file.py:function, dotted path or URL; default: the name",
    )
    weight: float = Field(1.0, allow_inf_nan=False, description="0 logs the part only")
    gate: float | None = Field(
        None,
        allow_inf_nan=False,
        description="The parts after this one are 0 for a completion below this value",
    )
    isolated: bool = Field(
        True, description="Run a plugin in the sandbox: no network, no writing, limited memory"
    )
    timeout_s: float | None = Field(
        None, gt=0, description="Deadline of one call of a plugin or URL; else rewards.timeout_s"
    )
    options: dict[str, Any] = Field(default_factory=dict, description="Keyword options")


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

    @field_validator("parts", mode="before")
    @classmethod
    def _drop(cls, parts: Any) -> Any:
        """``rewards.parts.NAME=null`` takes a part of the file out."""
        if not isinstance(parts, Mapping):
            return parts
        return {name: part for name, part in parts.items() if part is not None}


class SamplingConfig(Section):
    """How completions are sampled."""

    temperature: float = Field(1.0, ge=0)
    top_p: float = Field(1.0, gt=0, le=1)
    top_k: int = Field(0, ge=0, description="0 keeps the whole vocabulary")
    min_p: Fraction = Field(0.0, description="Least probability, as a share of the highest")
    stop: tuple[str, ...] = Field((), description="Texts that end a completion; they stay in it")
    max_tokens: Positive = 1024


class EvalConfig(Section):
    """Evaluation on ``data.eval`` (``mmr1 eval``, and at the end of ``mmr1 train``)."""

    samples: int = Field(1, ge=0, description="Sampled completions per prompt, beside the greedy")
    temperature: float = Field(1.0, gt=0, description="Of the sampled completions")
    batch_size: Positive = Field(128, description="Prompts given to the engine at once")
    limit: Positive | None = Field(None, description="Only the first records")
    accuracy: str | None = Field(
        None, description="Reward part whose 1.0 means right; default: the first but 'format'"
    )
    right_at: list[float] = Field(
        [1.0],
        description="Values of that part from which an answer is right; the first makes the "
        "accuracy. Empty: its mean does",
    )
    by: str | None = Field(None, description="Record key to break results down by; else the task")
    prompt: Literal["reason", "direct"] | None = Field(
        None, description="Ask for reasoning, or for the answer alone; else data.template"
    )
    models: dict[str, str] = Field(
        default_factory=dict, description="Names and paths of several models; else model.path"
    )
    data: dict[str, str] = Field(
        default_factory=dict,
        description="Names and records of several datasets, a benchmark's name brings its scoring; "
        "else data.eval",
    )
    output: str | None = Field(
        None, description="Folder for results and completions; an interrupted one is continued"
    )


class RolloutConfig(Section):
    """The engine that samples completions during training."""

    engine: Literal["vllm", "hf"] = "vllm"
    dtype: Dtype | None = Field(
        None, description="Of vLLM's weights and arithmetic; default: model.dtype"
    )
    n: Positive = Field(8, description="Group size: completions per prompt")
    prompts: Positive = Field(16, description="Prompts per step")
    sampling: SamplingConfig = SamplingConfig()
    max_model_len: Positive = Field(4096, description="Longest prompt and completion together")
    gpu_memory_utilization: Fraction = 0.5
    tensor_parallel_size: Positive = 1
    vision_tokens: Positive = Field(
        65536,
        description="Of prompts that vLLM works on at a time (19 KB of patches each); others wait",
    )
    cpu_kv_cache_gib: Positive = 1
    timeout_s: float = Field(
        3600, gt=0, description="An engine that takes longer for one batch is taken to hang"
    )
    ahead: int = Field(
        0, ge=0, description="Steps that rollouts run ahead of the update; their bound of staleness"
    )
    deterministic: bool = Field(
        False,
        description="The same step samples the same tokens: vLLM gets all prompts together and, on "
        "a GPU, its batch-invariant kernels",
    )
    restarts: int = Field(
        3, ge=0, description="How often in a run an engine that died or hung is replaced"
    )
    parity_tolerance: float | None = Field(
        None,
        gt=0,
        description="Log-prob gap allowed at start-up: in float32 of any token, default 1e-4; "
        "where engine or trainer is bf16 on average, default 0.1",
    )


class OptimizerConfig(Section):
    """AdamW."""

    lr: float = Field(1e-6, gt=0)
    betas: tuple[float, float] = (0.9, 0.999)
    weight_decay: float = Field(0.0, ge=0)
    warmup_steps: int = Field(10, ge=0)
    schedule: Literal["linear", "constant", "cosine"] = "linear"
    max_grad_norm: float = Field(1.0, gt=0)
    moments: Dtype = Field(
        "float32", description="How AdamW's moments are kept; bfloat16 is rounded at random"
    )
    offload: bool = Field(
        False, description="Keep float32 weights and moments in main memory and step there"
    )


class TrainerConfig(Section):
    """How long, where to, how often."""

    max_steps: Positive = 100
    output_dir: str = "runs/run"
    save_every: int = Field(0, ge=0, description="Checkpoint interval in steps; 0: the last only")
    keep_checkpoints: int = Field(2, ge=2, description="How many of the last to keep")
    keep_best: str | None = Field(
        None, description="Also keep the checkpoint where this metric was highest: reward/mean, ..."
    )
    save_in_background: bool = Field(
        False, description="Write checkpoints beside the training, from a copy in memory"
    )
    grace_s: float = Field(
        120.0, gt=0, description="Seconds that SIGTERM or Ctrl-C leaves a step to end and be saved"
    )
    log_rollouts_every: Positive = 10
    log_every: Positive = Field(10, description="Steps between lines when not on a terminal")
    trackers: list[Tracker] = Field(
        default_factory=list, description="Experiment trackers beside metrics.jsonl, any number"
    )
    project: str = Field("mmr1", description="Project that trackers file the run under")
    threads: Positive | None = Field(None, description="CPU threads of trainer and engine each")
    micro_batch_tokens: Positive = Field(
        16384, description="Cost of one forward and backward: tokens, and vision tokens once more"
    )
    vision_cost: float = Field(
        1.0, ge=0, description="Of a vision token in the tower; 1.0 for 3B, 0.42 for 7B"
    )


class ResourcesConfig(Section):
    """How many processes train and generate; more than one of either run on Ray."""

    ranks: Positive = Field(1, description="Trainer processes that the model is sharded over")
    shard: Positive | None = Field(
        None,
        description="Ranks that share one copy of the model, those of a machine if it fits there "
        "(hybrid sharding); default: all ranks",
    )
    engines: Positive = Field(1, description="Rollout engines that share the prompts of a step")
    address: str | None = Field(
        None, description="Ray cluster to join, 'auto' for that of this machine; else a local one"
    )
    start_timeout_s: float = Field(
        300, gt=0, description="Time that the cluster has to make room for all workers"
    )
    collective_timeout_s: float = Field(
        1800, gt=0, description="Time after which a rank that waits for others gives up"
    )

    @model_validator(mode="after")
    def _whole_copies(self) -> ResourcesConfig:
        if self.shard is not None and self.ranks % self.shard:
            raise ValueError(
                f"resources.shard={self.shard} does not divide resources.ranks={self.ranks}"
            )
        return self

    @property
    def distributed(self) -> bool:
        return self.ranks > 1 or self.engines > 1


class SftConfig(Section):
    """Supervised fine-tuning on demonstrations (``mmr1 sft``)."""

    batch_size: Positive = 32


class DpoConfig(Section):
    """Direct preference optimisation (``mmr1 dpo``), on given pairs or on one's own."""

    beta: float = Field(0.1, gt=0, description="Strength of the implied KL term")
    nll_coef: float = Field(
        0.0, ge=0, description="Of the chosen answer's mean negative log-likelihood"
    )
    batch_size: Positive = Field(32, description="Pairs per step")
    rounds: int = Field(
        0, ge=0, description="Times to sample and judge pairs of one's own; 0 reads them"
    )
    prompts: Positive = Field(128, description="Prompts sampled in a round, rollout.n times each")
    pairs_per_prompt: Positive = Field(4, description="At most; a round's pairs of one prompt")


class RewardModelConfig(Section):
    """Training of a reward model on pairs and rankings (``mmr1 rm``)."""

    batch_size: Positive = Field(32, description="Pairs or rankings per step")


class Config(Section):
    """The whole tree, for every command alike.

    A command reads the sections it needs, so the configuration that a run saved can be given to
    ``mmr1 eval`` as it is.
    """

    seed: int = 0
    model: ModelConfig
    data: DataConfig = DataConfig()
    rollout: RolloutConfig = RolloutConfig()
    rewards: RewardsConfig = RewardsConfig()
    algorithm: AlgorithmConfig = AlgorithmConfig()
    sft: SftConfig = SftConfig()
    dpo: DpoConfig = DpoConfig()
    rm: RewardModelConfig = RewardModelConfig()
    optimizer: OptimizerConfig = OptimizerConfig()
    trainer: TrainerConfig = TrainerConfig()
    resources: ResourcesConfig = ResourcesConfig()
    eval: EvalConfig = EvalConfig()

    @model_validator(mode="after")
    def _make_sense(self) -> Config:
        algorithm, n = self.algorithm, self.rollout.n
        if n < 2 and (algorithm.name in GROUP_BASELINE or algorithm.dynamic_sampling):
            raise ValueError(
                f"rollout.n={n} and algorithm.name={algorithm.name}: a group of one has no "
                "baseline and no signal; set rollout.n to 2 or more"
            )
        if (self.data.ptx is None) != (algorithm.ptx_coef == 0):
            raise ValueError(
                f"data.ptx={self.data.ptx} and algorithm.ptx_coef={algorithm.ptx_coef:g}: the PTX "
                "term needs demonstrations and a coefficient; set both, or neither"
            )
        self._match_contrast()
        if self.dpo.rounds and n < 2:
            raise ValueError(
                f"rollout.n={n} and dpo.rounds={self.dpo.rounds}: a pair needs two completions of "
                "a prompt; set rollout.n to 2 or more"
            )
        if self.dpo.rounds > self.trainer.max_steps:
            raise ValueError(
                f"dpo.rounds={self.dpo.rounds} share trainer.max_steps={self.trainer.max_steps}: "
                "a round would have no step; lower the first or raise the second"
            )
        critic, steps = algorithm.critic, self.trainer.max_steps
        if critic is not None and critic.warmup_steps >= steps:
            raise ValueError(
                f"algorithm.critic.warmup_steps={critic.warmup_steps} and trainer.max_steps={steps}"
                ": the policy would never learn; lower the first or raise the second"
            )
        if self.rollout.ahead and self.rollout.engine == "hf" and not self.resources.distributed:
            raise ValueError(
                f"rollout.ahead={self.rollout.ahead} and rollout.engine=hf: that engine samples "
                "from the very model that is being updated; set rollout.engine=vllm or ahead=0"
            )
        if self.rollout.engine == "hf" and self.rollout_dtype != self.model.dtype:
            raise ValueError(
                f"rollout.dtype={self.rollout.dtype} and model.dtype={self.model.dtype}: "
                "rollout.engine=hf samples from the model as it is; set rollout.engine=vllm, or "
                "leave rollout.dtype out"
            )
        if self.resources.distributed:
            self._refuse_what_ranks_cannot()
        return self

    @property
    def rollout_dtype(self) -> Dtype:
        """``rollout.dtype``, which is ``model.dtype`` where it is not set."""
        return self.rollout.dtype or self.model.dtype

    @property
    def rounded(self) -> bool:
        """The engine's log-probs or the trainer's are computed in half precision."""
        return "bfloat16" in (self.model.dtype, self.rollout_dtype)

    @property
    def parity_tolerance(self) -> float:
        """``rollout.parity_tolerance``, or its default."""
        return self.rollout.parity_tolerance or (0.1 if self.rounded else 1e-4)

    @property
    def correction(self) -> Literal["none", "token", "sequence"]:
        """``algorithm.rollout_correction`` with ``auto`` resolved."""
        wanted = self.algorithm.rollout_correction
        if wanted != "auto":
            return wanted
        is_off_policy = self.rollout.ahead or self.rollout_dtype != self.model.dtype
        return "token" if is_off_policy else "none"

    def _refuse_what_ranks_cannot(self) -> None:
        resources = f"resources.ranks={self.resources.ranks} engines={self.resources.engines}"
        if self.algorithm.critic is not None:
            raise ValueError(
                f"{resources} and algorithm.name={self.algorithm.name}: a critic trains in one "
                "process only; set both to 1, or choose an algorithm without a critic"
            )
        if self.algorithm.ptx_coef or self.algorithm.kl_estimator == "full":
            raise ValueError(
                f"{resources}: the PTX term and the KL over the vocabulary are computed in one "
                "process only; set both to 1, or algorithm.ptx_coef=0 and another kl_estimator"
            )
        if self.optimizer.offload or self.algorithm.offload_reference:
            raise ValueError(
                f"{resources} and optimizer.offload or algorithm.offload_reference: ranks shard "
                "what one process would offload; leave them out and set resources.ranks higher"
            )
        sharded, whole = self.resources.shard, self.resources.ranks
        if self.optimizer.moments == "bfloat16" and sharded not in (None, whole):
            raise ValueError(
                f"resources.shard={sharded} of {whole} ranks and optimizer.moments=bfloat16: "
                "copies of the model would be rounded differently; set moments=float32, or leave "
                "resources.shard out"
            )
        if self.trainer.save_in_background:
            raise ValueError(
                f"{resources} and trainer.save_in_background: ranks save together, between steps; "
                "leave it out"
            )

    def _match_contrast(self) -> None:
        """T-GRPO's rollout and its reward part go together."""
        parts = self.rewards.parts.items()
        pays = [name for name, part in parts if (part.use or name) == "temporal_contrast"]
        name = self.algorithm.name
        if name == "t_grpo" and not pays:
            raise ValueError(
                "algorithm.name=t_grpo compares with shuffled frames and no reward part pays for "
                "it; add rewards.parts.temporal_contrast with options.of naming an accuracy part"
            )
        if pays and name in ALGORITHMS.builtin and name != "t_grpo":
            raise ValueError(
                f"rewards.parts.{pays[0]} compares with completions for shuffled frames and "
                f"algorithm.name={name} samples none; set algorithm.name=t_grpo"
            )
