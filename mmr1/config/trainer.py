"""The ``trainer``, ``resources`` and ``sft`` sections."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar

from pydantic import Field, field_validator, model_validator

from mmr1.registry import TRACKERS
from mmr1.section import ALL, OFFLINE, TRAINING, Coefficient, Count, Need, Positive, Section

Name = Annotated[str, Field(min_length=1)]
DEFAULT_STEPS = 100
SPLIT = ("ranks", "engines", "fsdp_size", "reward_ranks")
"""The keys that ``resources: auto`` decides."""


def _nothing_for_reward_ranks(c: Any) -> bool:
    holds = any(r.type == "reward_model" for r in c.rewards.values())
    holds = holds or c.algorithm.advantage.per_step
    return c.resources.reward_ranks > 1 and not (holds and c.distributed)


def _unknown_validation(c: Any) -> bool:
    kind, _, way = _best(c).partition("/")
    return kind == "eval" and way.partition("/")[0] not in c.eval.ways


def _unvalidated_checkpoints(c: Any) -> bool:
    every = c.trainer.eval_steps
    return _best(c).startswith("eval/") and (not every or c.trainer.save_steps % every > 0)


def _best(c: Any) -> str:
    checkpoints = c.trainer.checkpoints
    return (checkpoints and checkpoints.metric_for_best_model) or ""


class CheckpointsConfig(Section):
    """Checkpoints before the last step."""

    needs: ClassVar[tuple[Need, ...]] = (
        Need(
            (
                "trainer.checkpoints.metric_for_best_model",
                "trainer.checkpoints.save_steps",
                "trainer.validation.steps",
            ),
            _unvalidated_checkpoints,
            "every checkpoint needs a validation; make save_steps a multiple of validation.steps",
            (
                "trainer.validation.data=x",
                "trainer.validation.steps=2",
                "trainer.checkpoints.save_steps=5",
                "trainer.checkpoints.metric_for_best_model=eval/greedy",
            ),
            commands=TRAINING,
        ),
        Need(
            ("trainer.checkpoints.metric_for_best_model", "eval.sampled", "eval.views"),
            _unknown_validation,
            "no validation logs it; eval/greedy is always there, eval/sampled with eval.sampled, "
            "eval/greedy_VIEW with eval.views, and each also with a reward's name: "
            "eval/greedy/format",
            (
                "trainer.validation.data=x",
                "trainer.validation.steps=2",
                "trainer.checkpoints.save_steps=4",
                "trainer.checkpoints.metric_for_best_model=eval/sampled",
                "eval.sampled=null",
            ),
        ),
    )

    save_steps: Positive = Field(description="Steps between checkpoints")
    save_total_limit: int = Field(2, ge=2, description="Number of recent checkpoints to keep")
    metric_for_best_model: str | None = Field(
        None,
        description="Also keep the checkpoint with the highest value of this metric; e.g. "
        "reward/mean, or eval/greedy with trainer.validation.steps",
    )
    async_save: bool = Field(
        False, description="Write checkpoints in the background, from a copy in memory"
    )


class ValidationConfig(Section):
    """Evaluation while a run learns."""

    needs: ClassVar[tuple[Need, ...]] = (
        Need(
            ("trainer.validation.steps", "trainer.validation.before_train"),
            lambda c: (
                c.trainer.validation is not None
                and (c.trainer.validation.steps is not None or c.trainer.validation.before_train)
            ),
            "this command evaluates after its last step, or never; leave them out",
            ("trainer.validation.data=x", "trainer.validation.steps=2"),
            commands=OFFLINE,
            command="sft",
        ),
        Need(
            ("trainer.validation",),
            lambda c: (
                c.trainer.validation is not None and not c.samples and not c.declaration.evaluates
            ),
            "this command evaluates nothing; evaluate the checkpoint with mmr1 eval",
            ("trainer.validation.data=x",),
            warns=True,
            commands=OFFLINE,
            command="sft",
        ),
    )

    data: str = Field(description="Held-out records: a file, a folder or dataset@split")
    steps: Positive | None = Field(
        None, description="Steps between validations; null: only after the last step"
    )
    before_train: bool = Field(False, description="Validate before the first step too")


class TrackingConfig(Section):
    """Experiment trackers, in addition to metrics.jsonl."""

    report_to: tuple[str, ...] = Field(
        min_length=1,
        description="The trackers (TRL): tensorboard, wandb, mlflow, swanlab, trackio, or "
        "file.py:function",
    )
    project_name: str = Field("mmr1", description="Project name in the trackers")
    run_name: Name | None = Field(
        None,
        description="Name of the run; null: that of its folder (EasyR1: experiment_name)",
    )
    tags: tuple[Name, ...] = Field((), description="Tags of the run")

    @field_validator("report_to")
    @classmethod
    def _known(cls, names: tuple[str, ...]) -> tuple[str, ...]:
        for name in names:
            TRACKERS.check(name)
        return names


class TrainerConfig(Section):
    """Length, output, checkpoints and logging of a run."""

    needs: ClassVar[tuple[Need, ...]] = (
        Need(
            ("trainer.step_files",),
            lambda c: c.trainer.sets("step_files"),
            "this command writes no step files; leave it out",
            ("trainer.step_files=false",),
            commands=OFFLINE,
            command="sft",
        ),
        Need(
            ("trainer.log_completions_steps",),
            lambda c: c.trainer.sets("log_completions_steps"),
            "this command logs all of its completions, or has none; leave it out",
            ("trainer.log_completions_steps=2",),
            commands=OFFLINE,
            command="sft",
        ),
        Need(
            ("trainer.vision_use_steps",),
            lambda c: c.trainer.vision_use_steps is not None,
            "this command does not measure whether completions depend on images; leave it out",
            ("trainer.vision_use_steps=2",),
            commands=OFFLINE,
            command="sft",
        ),
    )

    max_steps: Positive | None = Field(
        None,
        description="Training steps, those before a resume included; null: 100, or with "
        "total_epochs as many as these take",
    )
    total_epochs: Coefficient | None = Field(
        None,
        description="Passes over data.train; with max_steps, the run ends with whichever comes "
        "first",
    )
    output_dir: str = Field("runs/run", description="Folder of the run")
    checkpoints: CheckpointsConfig | None = Field(
        None, description="Checkpoints before the last step; null: one, after the last step"
    )
    save_only_model: bool = Field(
        False,
        description="Checkpoints are the model alone: smaller, and no run can resume from them",
    )
    validation: ValidationConfig | None = Field(
        None, description="Evaluation while the run learns; null: none"
    )
    tracking: TrackingConfig | None = Field(
        None, description="Experiment trackers; null: metrics.jsonl alone"
    )
    logging_steps: Positive = Field(
        10, description="Steps between lines of metrics; after 30 s there is one in any case"
    )
    log_completions_steps: Positive = Field(
        10, description="Steps between logged completions (rollouts/ and trackers)"
    )
    vision_use_steps: Positive | None = Field(
        None,
        description="Steps between measurements of how much completions depend on their pictures; "
        "their log-probs less those under grey pictures, and under those of another prompt",
    )
    max_tokens_per_gpu: Positive = Field(
        16384,
        description="Maximum cost of a micro-batch: its tokens, plus its vision tokens times "
        "vision_token_cost",
    )
    vision_token_cost: float | None = Field(
        None,
        ge=0,
        description="Cost of a vision token in the vision tower, relative to the language model; "
        "null: computed from the shapes of the model",
    )
    profile_steps: tuple[Positive, ...] = Field(
        (),
        description="Steps that torch.profiler records; each is a trace in the run's folder "
        "profile, for chrome://tracing or Perfetto",
    )
    step_files: bool = Field(
        True,
        description="Write a step file for mmr1 audit at the first step and after each checkpoint",
    )
    threads: Positive | None = Field(
        None, description="CPU threads of the trainer, and of the engine; null: PyTorch's"
    )
    grace_period_s: Coefficient = Field(
        120.0,
        description="Seconds to finish and save the current step after SIGTERM or Ctrl-C",
    )

    @model_validator(mode="before")
    @classmethod
    def _some_length(cls, values: Any) -> Any:
        """Set ``max_steps`` to its default if neither length is given."""
        if not isinstance(values, Mapping):
            return values
        if values.get("max_steps") is None and values.get("total_epochs") is None:
            return {**values, "max_steps": DEFAULT_STEPS}
        return values

    @property
    def steps(self) -> int:
        """Training steps. With ``total_epochs`` alone they are known when the data is."""
        return self.max_steps or DEFAULT_STEPS

    @property
    def eval_steps(self) -> int:
        """Steps between validations; 0 where only the last step is validated, or none."""
        return (self.validation.steps or 0) if self.validation else 0

    @property
    def save_steps(self) -> int:
        """Steps between checkpoints; 0 where there is only the last one."""
        return 0 if self.checkpoints is None else self.checkpoints.save_steps

    @property
    def trackers(self) -> tuple[str, ...]:
        """The experiment trackers; none without ``tracking``."""
        return () if self.tracking is None else self.tracking.report_to

    @property
    def async_save(self) -> bool:
        """True if checkpoints are written in the background."""
        return self.checkpoints is not None and self.checkpoints.async_save

    @property
    def validates_before(self) -> bool:
        """True if a validation precedes the first step."""
        return self.validation is not None and self.validation.before_train

    def validates(self, step: int) -> bool:
        """True if a validation follows step ``step``; with ``validation.steps`` the last too."""
        every = self.eval_steps
        return every > 0 and (step % every == 0 or step == self.steps)

    def next_validation(self, step: int) -> int:
        """The first step, at or after ``step``, that a validation follows; the last if none."""
        every = self.eval_steps or self.steps
        return min(-(-step // every) * every, self.steps)


class RayConfig(Section):
    """The Ray cluster."""

    address: str | None = Field(
        None, description="Its address; auto: the cluster of this machine; null: start a local one"
    )
    start_timeout_s: Coefficient = Field(
        300, description="Seconds to wait until the cluster has resources for all workers"
    )
    max_restarts: Count = Field(
        0,
        description="Restarts of a run that loses a rank; it continues from its last checkpoint, "
        "on what is left of the cluster",
    )


class ResourcesConfig(Section):
    """Numbers of processes. More than one rank or engine run on Ray.

    ``resources: auto`` takes the split of this machine's GPUs that ``mmr1 doctor --estimate``
    proposes.
    """

    needs: ClassVar[tuple[Need, ...]] = (
        Need(
            ("resources.engines",),
            lambda c: c.resources.engines > 1 and not c.samples,
            "this command samples nothing; leave it out",
            ("resources.engines=2",),
            commands=OFFLINE,
            command="sft",
        ),
        Need(
            ("resources.collective_timeout_s", "resources.ranks"),
            lambda c: c.in_one_process and c.resources.sets("collective_timeout_s"),
            "one process has no collective operations; leave it out, or set several ranks",
            ("resources.collective_timeout_s=60",),
            commands=TRAINING,
            command="sft",
        ),
        Need(
            ("resources.reward_ranks",),
            _nothing_for_reward_ranks,
            "a run in one process holds its reward models itself, and one without reward models "
            "has none to hold; leave it out",
            ("resources.reward_ranks=2",),
            commands=ALL,
        ),
    )

    auto: bool = Field(
        False,
        description="Take the split of the GPUs that mmr1 doctor --estimate proposes; "
        "resources=auto is short for it",
    )
    ranks: Positive = Field(1, description="Trainer processes; FSDP2 shards the model over them")
    engines: Positive = Field(
        1,
        description="Rollout engines; the prompts of a step are divided among them. Those of "
        "rollout.engine.colocate have the GPUs of all ranks",
    )
    fsdp_size: Positive | None = Field(
        None,
        description="Ranks that share one copy of the model; fewer than ranks: hybrid sharding. "
        "null: all ranks",
    )
    context_parallel_size: Positive = Field(
        1,
        description="Ranks that share each sequence, cut by tokens; for sequences whose "
        "activations do not fit on one rank",
    )
    reward_ranks: Positive = Field(
        1,
        description="Processes that hold the reward models of a run on Ray, sharded over them and "
        "on separate GPUs. A run in one process holds them itself",
    )
    collective_timeout_s: Coefficient = Field(
        1800, description="Seconds after which a collective operation counts as hung"
    )
    ray: RayConfig | None = Field(
        None, description="The Ray cluster; null: a local one, where several processes need it"
    )

    @classmethod
    def expanded(cls, short: Any) -> Any:
        """Write the word auto out as the key."""
        return {"auto": True} if short == "auto" else short

    @classmethod
    def below(cls, values: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
        """Replace auto in the file by numbers on the command line, and the reverse."""
        gone: tuple[str, ...] = ()
        if above.get("auto"):
            gone = SPLIT
        elif any(key in above for key in SPLIT):
            gone = ("auto",)
        return {key: value for key, value in values.items() if key not in gone}

    @model_validator(mode="after")
    def _whole_groups(self) -> ResourcesConfig:
        fields = type(self).model_fields
        if self.auto and any(getattr(self, key) != fields[key].default for key in SPLIT):
            raise ValueError(
                "auto chooses ranks, engines, fsdp_size and reward_ranks by the GPUs of this "
                "machine; leave them out, or auto"
            )
        for key in ("fsdp_size", "context_parallel_size"):
            size = getattr(self, key)
            if not self.auto and size is not None and self.ranks % size:
                raise ValueError(
                    f"{key}={size} does not divide ranks={self.ranks}; set ranks to a multiple"
                )
        return self

    @property
    def cluster(self) -> RayConfig:
        """The ``ray`` section, or its defaults."""
        return self.ray or RayConfig()


class SftConfig(Section):
    """Supervised fine-tuning (``mmr1 sft``)."""

    completion_only_loss: bool = Field(
        True,
        description="The loss is on the assistant's tokens; false: on the prompt's text too (TRL; "
        "LLaMA-Factory: train_on_prompt). Vision placeholders are never learned",
    )
