"""The whole configuration."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal, Self, TypeVar

from pydantic import Field, PrivateAttr, create_model

from mmr1.config.algorithm import AlgorithmConfig
from mmr1.config.commands import PACKAGE_SECTIONS, Command, command_named
from mmr1.config.data import DataConfig
from mmr1.config.environment import Environment
from mmr1.config.evaluation import EvalConfig
from mmr1.config.model import ModelConfig, OptimizerConfig
from mmr1.config.rewards import Rewards, default_rewards
from mmr1.config.rollout import RolloutConfig
from mmr1.config.secrets import Key
from mmr1.config.trainer import ResourcesConfig, SftConfig, TrainerConfig
from mmr1.engines.vllm import VllmConfig
from mmr1.rewards.scoring import ScoringConfig
from mmr1.section import EngineDtype, Section, section_classes

AnySection = TypeVar("AnySection", bound=Section)


class Config(Section):
    """The whole configuration, for one command.

    Every section is there in Python. The file of a run has those that its command reads, by
    ``commands.py``. The ``config.yaml`` of any run works with ``mmr1 eval``.
    """

    seed: int = Field(0, description="Seed of everything that is random")
    full_determinism: bool = Field(
        False,
        description="The same seed gives the same bits. vLLM waits for all prompts of the step, "
        "and on a GPU uses its batch-invariant kernels; the trainer's operations are "
        "deterministic, which is slower on a GPU and needed for the same bits after a resume",
    )
    model: ModelConfig
    data: DataConfig = DataConfig()
    rollout: RolloutConfig = Field(default_factory=RolloutConfig)
    environment: Environment | None = Field(
        None, description="Tools or an environment between the policy's turns; null: none"
    )
    rewards: Rewards = Field(
        default_factory=default_rewards,
        description="Rewards by name, whose weighted sum is the reward; a number is short for a "
        "weight, a text for a type, null removes one. If not set: format (weight 0.5) and math",
    )
    scoring: ScoringConfig = Field(default_factory=ScoringConfig)
    algorithm: AlgorithmConfig = Field(default_factory=AlgorithmConfig)
    sft: SftConfig = SftConfig()
    optimizer: OptimizerConfig = Field(default_factory=OptimizerConfig)
    trainer: TrainerConfig = Field(default_factory=lambda: TrainerConfig.model_validate({}))
    resources: ResourcesConfig = ResourcesConfig()
    eval: EvalConfig = Field(default_factory=EvalConfig)
    _references: dict[Key, str] = PrivateAttr(default_factory=dict)
    _command: str = PrivateAttr("train")

    @property
    def references(self) -> Mapping[Key, str]:
        """The file's references in place of credentials, such as ``${oc.env:NAME}``, by key."""
        return self._references

    def keep_references(self, references: Mapping[Key, str]) -> None:
        """Remember the file's references in place of credentials, for copies that are written."""
        self._references.update(references)

    @property
    def command(self) -> str:
        """The command that the configuration is for."""
        return self._command

    @property
    def declaration(self) -> Command:
        """The declaration of its command."""
        return command_named(self._command)

    @property
    def samples(self) -> bool:
        """True if the run samples completions and scores them."""
        return self.declaration.samples(self)

    def section(self, kind: type[AnySection]) -> AnySection:
        """Return the section of a class that a package declares."""
        for key in PACKAGE_SECTIONS.names():
            if isinstance(section := getattr(self, key), kind):
                return section
        raise AssertionError(f"no package declares the section {kind.__name__}")

    def for_command(self, command: str) -> Config:
        """The same values for another command, which writes other sections."""
        copy = self.model_copy()
        copy._command = command
        copy._references = dict(self._references)
        return copy

    def changed(self, values: Mapping[str, Any] | None = None, /, **keys: Any) -> Self:
        """See :meth:`Section.changed`. The copy is for the same command; rows are not checked."""
        copy = super().changed(values, **keys)
        copy._references = dict(self._references)
        copy._command = self._command
        return copy

    @property
    def sections(self) -> tuple[str, ...]:
        """The top keys that the command reads, in the order of the tree."""
        read = self.declaration.sections(self)
        common = ("seed", "full_determinism", "model", "data", "optimizer", "trainer", "resources")
        return tuple(key for key in type(self).model_fields if key in (*common, *read))

    @property
    def distributed(self) -> bool:
        """True if the run has processes on Ray."""
        resources = self.resources
        several = resources.ranks > 1 or resources.engines > 1 or self.rollout.colocated
        return several or resources.ray is not None

    @property
    def in_one_process(self) -> bool:
        """True if trainer and engine share this process, and no GPUs are to be shared out."""
        return not self.distributed and not self.resources.auto

    @property
    def engines(self) -> int:
        """The number of rollout engines; colocated ones have the GPUs of all ranks."""
        if self.rollout.colocated:
            return max(1, self.resources.ranks // self.rollout.gpus_per_engine)
        return self.resources.engines

    @property
    def eval_records(self) -> str | None:
        """The records to evaluate on: the validation's; for ``mmr1 eval`` first ``eval.data``.

        ``eval.data`` with several has no one path; ``mmr1 eval`` makes a configuration of each.
        """
        if self.command == "eval" and isinstance(self.eval.data, str):
            return self.eval.data
        validation = self.trainer.validation
        return None if validation is None else validation.data

    @property
    def rollout_dtype(self) -> EngineDtype:
        """The data type that the engine computes in."""
        return self.dtypes.get("rollout.engine.dtype", self.model.dtype)

    @property
    def dtypes(self) -> dict[str, EngineDtype]:
        """Data types of the trainer and of the engine, by the keys that set them."""
        keys: dict[str, EngineDtype] = {"model.dtype": self.model.dtype}
        engine = self.rollout.engine
        if isinstance(engine, VllmConfig) and engine.dtype:
            keys["rollout.engine.dtype"] = engine.dtype
        return keys

    @property
    def gpu_memory_utilization(self) -> float:
        """``rollout.engine.gpu_memory_utilization``, or its default."""
        engine = self.rollout.engine
        written = engine.gpu_memory_utilization if isinstance(engine, VllmConfig) else None
        own_gpus = self.distributed and not self.rollout.colocated
        return written or (0.9 if own_gpus or self.command == "eval" else 0.5)

    @property
    def policy_steps(self) -> int:
        """Steps in which the policy learns: all but those of the critic's warm-up."""
        critic = self.algorithm.critic
        return self.trainer.steps - (0 if critic is None else critic.warmup_steps)

    @property
    def rounds_logprobs(self) -> bool:
        """True if the engine or the trainer computes log-probs in less than float32."""
        engine = self.rollout.engine
        quantized = isinstance(engine, VllmConfig) and engine.rounds
        return quantized or {self.model.dtype, self.rollout_dtype} != {"float32"}

    @property
    def parity_tolerance(self) -> float:
        """``rollout.parity_tolerance``, or its default."""
        return self.rollout.parity_tolerance or (0.1 if self.rounds_logprobs else 1e-4)

    @property
    def resolved_rollout_is(self) -> Literal["none", "token", "sequence"]:
        """The kind of importance weights that multiply the losses, with ``auto`` resolved."""
        weights = self.algorithm.importance_sampling
        if weights is None:
            return "none"
        if weights.level != "auto":
            return weights.level
        samples_itself = "shared" in self.rollout.engine.abilities.channels
        is_earlier = self.rollout.max_off_policy_steps > 0 or self.algorithm.learns_from_earlier
        return "none" if samples_itself and not is_earlier else "token"

    @property
    def max_staleness(self) -> int:
        """The most steps by which the weights that sampled a token are older than the policy."""
        rollout, window = self.rollout, 1
        if rollout.streams:
            window = max(1, rollout.queue.window)
        return rollout.max_off_policy_steps + -(-(window - 1) // self.data.train_batch_size)

    @property
    def mini_batches(self) -> int:
        """Optimizer steps of the policy per pass over a rollout."""
        batch_size = self.data.train_batch_size
        return batch_size // (self.algorithm.ppo_mini_batch_size or batch_size)

    @property
    def updates(self) -> int:
        """Optimizer steps of the policy per rollout."""
        return self.mini_batches * self.algorithm.ppo_epochs


def _with_package_sections(core: type[Config]) -> type[Config]:
    """Extend the class by the sections that installed packages declare."""
    fields: dict[str, Any] = {}
    for name in sorted(PACKAGE_SECTIONS.names()):
        annotation = PACKAGE_SECTIONS.load(name)
        default = next(section_classes(annotation))
        fields[name] = (annotation, Field(default_factory=default))
    return create_model(
        core.__name__, __base__=core, __module__=__name__, __doc__=core.__doc__, **fields
    )


if not TYPE_CHECKING:
    Config = _with_package_sections(Config)
