"""The ``trainer``, ``resources``, ``sft``, ``dpo`` and ``rm`` sections."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, field_validator, model_validator

from mmr1.config.section import Fraction, Positive, Section
from mmr1.registry import TRACKERS


class TrainerConfig(Section):
    """Length, output, checkpoints and logging of a run."""

    max_steps: Positive = Field(100, description="Training steps, those before a resume included")
    max_epochs: float | None = Field(
        None,
        gt=0,
        description="Passes over data.train in place of max_steps; with both, the run ends with "
        "whichever comes first (EasyR1: total_epochs)",
    )
    output_dir: str = Field("runs/run", description="Folder of the run")
    save_steps: int = Field(
        0, ge=0, description="Steps between checkpoints; 0: only after the last step"
    )
    save_total_limit: int = Field(2, ge=2, description="Number of recent checkpoints to keep")
    val_freq: int = Field(
        0,
        ge=0,
        description="Steps between validations on data.eval; 0: only after the last step (verl: "
        "test_freq)",
    )
    val_before_train: bool = Field(False, description="Validate before the first step too")
    metric_for_best_model: str | None = Field(
        None,
        description="Also keep the checkpoint with the highest value of this metric, e.g. "
        "reward/mean, or eval/greedy with val_freq",
    )
    save_only_model: bool = Field(
        False,
        description="Checkpoints are the model alone: smaller, and no run can resume from them",
    )
    async_save: bool = Field(
        False, description="Write checkpoints in the background, from a copy in memory"
    )
    grace_period_s: float = Field(
        120.0,
        gt=0,
        description="Seconds to finish and save the current step after SIGTERM or Ctrl-C",
    )
    log_completions_steps: Positive = Field(
        10, description="Steps between logged completions (rollouts/ and trackers)"
    )
    logging_steps: Positive = Field(
        10, description="Steps between progress lines when the output is not a terminal"
    )
    trackers: list[str] = Field(
        default_factory=list,
        description="Experiment trackers, in addition to metrics.jsonl (TRL: report_to): "
        "tensorboard, wandb, mlflow, swanlab, trackio, or file.py:function",
    )
    project_name: str = Field("mmr1", description="Project name in the trackers")
    run_name: str | None = Field(
        None,
        min_length=1,
        description="Name of the run in the trackers; default: that of its folder (EasyR1: "
        "experiment_name)",
    )
    tags: list[Annotated[str, Field(min_length=1)]] = Field(
        default_factory=list, description="Tags of the run in the trackers"
    )
    profile_steps: list[Positive] = Field(
        default_factory=list,
        description="Steps that torch.profiler records, each as a trace in the run's folder "
        "profile, for chrome://tracing or Perfetto",
    )
    threads: Positive | None = Field(
        None, description="CPU threads of the trainer, and of the engine; default: PyTorch's"
    )
    deterministic: bool = Field(
        False,
        description="Deterministic operations in the trainer: on a GPU slower, and needed for the "
        "same bits after a resume. On a CPU they are deterministic anyway",
    )
    micro_batch_tokens: Positive = Field(
        16384,
        description="Maximum cost of a micro-batch: its tokens, plus its vision tokens times "
        "vision_token_cost",
    )
    vision_token_cost: float = Field(
        1.0,
        ge=0,
        description="Cost of a vision token in the vision tower, relative to the language model: "
        "1.0 for Qwen2.5-VL-3B, 0.42 for 7B",
    )

    @field_validator("trackers")
    @classmethod
    def _trackers_are_known(cls, names: list[str]) -> list[str]:
        for name in names:
            TRACKERS.check(name)
        return names

    def validates(self, step: int) -> bool:
        """Does a validation follow step ``step``? The last step is validated with ``val_freq``."""
        return self.val_freq > 0 and (step % self.val_freq == 0 or step == self.max_steps)

    def next_validation(self, step: int) -> int:
        """The first step, at or after ``step``, that a validation follows; the last if none."""
        every = self.val_freq or self.max_steps
        return min(-(-step // every) * every, self.max_steps)


class ResourcesConfig(Section):
    """Numbers of processes. More than one rank or engine run on Ray."""

    ranks: Positive = Field(
        1,
        description="Trainer processes; FSDP2 shards the model over them. mmr1 doctor --estimate "
        "CONFIG --gpus N proposes how many",
    )
    fsdp_size: Positive | None = Field(
        None,
        description="Ranks that share one copy of the model; fewer than ranks: hybrid sharding. "
        "Default: all ranks",
    )
    context: Positive = Field(
        1,
        description="Ranks that share each sequence, cut by tokens: for sequences whose "
        "activations one rank has no memory for",
    )
    engines: Positive = Field(
        1, description="Rollout engines; the prompts of a step are divided among them"
    )
    colocate: bool = Field(
        False,
        description="Engine i shares the GPU of rank i and sleeps while the ranks learn; as many "
        "engines as ranks",
    )
    offload_while_sampling: bool = Field(
        False,
        description="With colocate: weights, float32 copies and moments of the ranks, references "
        "and critics lie in main memory while the engines sample",
    )
    address: str | None = Field(
        None,
        description="Address of a Ray cluster; auto: the cluster of this machine; default: start "
        "a local one",
    )
    start_timeout_s: float = Field(
        300, gt=0, description="Seconds to wait until the cluster has resources for all workers"
    )
    max_restarts: int = Field(
        0,
        ge=0,
        description="How often a training run on Ray that loses a rank goes on by itself from its "
        "last checkpoint, on what is left of the cluster",
    )
    collective_timeout_s: float = Field(
        1800, gt=0, description="Seconds after which a collective operation counts as hung"
    )

    @model_validator(mode="after")
    def _whole_groups(self) -> ResourcesConfig:
        if self.fsdp_size is not None and self.ranks % self.fsdp_size:
            raise ValueError(
                f"resources.fsdp_size={self.fsdp_size} does not divide resources.ranks={self.ranks}"
            )
        if self.ranks % self.context:
            raise ValueError(
                f"resources.context={self.context} does not divide resources.ranks={self.ranks}; "
                "set resources.ranks to a multiple of it"
            )
        return self

    @model_validator(mode="after")
    def _shared_gpus(self) -> ResourcesConfig:
        if self.offload_while_sampling and not self.colocate:
            raise ValueError(
                "resources.offload_while_sampling: only engines that share the ranks' GPUs "
                "(resources.colocate=true) need their memory; leave it out"
            )
        return self

    @property
    def distributed(self) -> bool:
        return self.ranks > 1 or self.engines > 1 or self.colocate


class SftConfig(Section):
    """Supervised fine-tuning on demonstrations (``mmr1 sft``)."""

    batch_size: Positive = Field(32, description="Demonstrations per step")


class RewardModelConfig(Section):
    """Training of a reward model on pairs and rankings, or on steps (``mmr1 rm``)."""

    supervision: Literal["outcome", "process"] = Field(
        "outcome",
        description="outcome: pairs and rankings of whole answers. process: labels of their steps",
    )
    step_separator: str = Field(
        "\n\n", min_length=1, description="What stands between two steps of an answer"
    )
    batch_size: Positive = Field(32, description="Pairs or rankings per step")


class IterateConfig(Section):
    """Iterative GRPO with a reward model that learns too (``mmr1 iterate``)."""

    rounds: Positive = Field(2, description="Rounds of trainer.max_steps steps of the policy")
    rm_steps: Positive = Field(100, description="Steps of the reward model between two rounds")
    rm_lr: float | None = Field(None, gt=0, description="Its learning rate; default: optimizer.lr")
    replay_fraction: Fraction = Field(
        0.1, description="Share of earlier data in its training (arXiv 2402.03300)"
    )
    history: str | None = Field(
        None, description="Rankings or pairs that it was trained on before the first round"
    )
    ranked_by: str | None = Field(
        None,
        description="Reward function that ranks the completions; default: eval.accuracy_function",
    )
