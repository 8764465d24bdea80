"""How long, where and on what a run trains, and the sections of SFT, DPO and reward models."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, model_validator

from mmr1.config.section import Positive, Section

Tracker = Literal["tensorboard", "wandb", "mlflow", "swanlab", "trackio"]


class TrainerConfig(Section):
    """How long, where to, how often."""

    max_steps: Positive = 100
    output_dir: str = "runs/run"
    save_steps: int = Field(0, ge=0, description="Checkpoint interval in steps; 0: the last only")
    save_total_limit: int = Field(2, ge=2, description="How many of the last to keep")
    metric_for_best_model: str | None = Field(
        None, description="Also keep the checkpoint where this metric was highest: reward/mean, ..."
    )
    async_save: bool = Field(
        False, description="Write checkpoints beside the training, from a copy in memory"
    )
    grace_period_s: float = Field(
        120.0, gt=0, description="Seconds that SIGTERM or Ctrl-C leaves a step to end and be saved"
    )
    log_completions_steps: Positive = 10
    logging_steps: Positive = Field(10, description="Steps between lines when not on a terminal")
    trackers: list[Tracker] = Field(
        default_factory=list, description="Experiment trackers beside metrics.jsonl, any number"
    )
    project_name: str = Field("mmr1", description="Project that trackers file the run under")
    threads: Positive | None = Field(None, description="CPU threads of trainer and engine each")
    micro_batch_tokens: Positive = Field(
        16384, description="Cost of one forward and backward: tokens, and vision tokens once more"
    )
    vision_token_cost: float = Field(
        1.0, ge=0, description="Of a vision token in the tower; 1.0 for 3B, 0.42 for 7B"
    )


class ResourcesConfig(Section):
    """How many processes train and generate; more than one of either run on Ray."""

    ranks: Positive = Field(1, description="Trainer processes that the model is sharded over")
    fsdp_size: Positive | None = Field(
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
        if self.fsdp_size is not None and self.ranks % self.fsdp_size:
            raise ValueError(
                f"resources.fsdp_size={self.fsdp_size} does not divide resources.ranks={self.ranks}"
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
    prompts_per_round: Positive = Field(
        128, description="Prompts sampled in a round, rollout.n times each"
    )
    pairs_per_prompt: Positive = Field(4, description="At most; a round's pairs of one prompt")


class RewardModelConfig(Section):
    """Training of a reward model on pairs and rankings (``mmr1 rm``)."""

    batch_size: Positive = Field(32, description="Pairs or rankings per step")
