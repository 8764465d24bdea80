"""The whole configuration, and the checks that involve several sections."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from pydantic import Field, PrivateAttr, model_validator

from mmr1.config.algorithm import AlgorithmConfig
from mmr1.config.algorithm_spec import algorithm_specs
from mmr1.config.data import DataConfig
from mmr1.config.dpo import DpoConfig
from mmr1.config.environment import EnvironmentConfig
from mmr1.config.model import ModelConfig, OptimizerConfig
from mmr1.config.rewards import RewardsConfig
from mmr1.config.rollout import EvalConfig, RolloutConfig
from mmr1.config.secrets import Key, mask_text
from mmr1.config.section import Dtype, Section
from mmr1.config.trainer import (
    IterateConfig,
    ResourcesConfig,
    RewardModelConfig,
    SftConfig,
    TrainerConfig,
)


class Config(Section):
    """The whole configuration. All commands share it, and each reads the sections it needs.

    The ``config.yaml`` of a training run therefore works with ``mmr1 eval`` unchanged.
    """

    seed: int = Field(0, description="Seed of everything that is random")
    model: ModelConfig
    data: DataConfig = DataConfig()
    rollout: RolloutConfig = RolloutConfig()
    environment: EnvironmentConfig | None = Field(
        None, description="Tools or an environment between the policy's turns; default: none"
    )
    rewards: RewardsConfig = RewardsConfig()
    # Made when a configuration is, not on import: the algorithms' files import this package.
    algorithm: AlgorithmConfig = Field(default_factory=AlgorithmConfig)
    sft: SftConfig = SftConfig()
    dpo: DpoConfig = DpoConfig()
    rm: RewardModelConfig = RewardModelConfig()
    iterate: IterateConfig = IterateConfig()
    optimizer: OptimizerConfig = OptimizerConfig()
    trainer: TrainerConfig = TrainerConfig()
    resources: ResourcesConfig = ResourcesConfig()
    eval: EvalConfig = EvalConfig()
    _references: dict[Key, str] = PrivateAttr(default_factory=dict)

    @property
    def references(self) -> Mapping[Key, str]:
        """What the file has in place of credentials, such as ``${oc.env:NAME}``, by key."""
        return self._references

    def keep_references(self, references: Mapping[Key, str]) -> None:
        """Remember what the file has in place of credentials, for the copies that are written."""
        self._references.update(references)

    @model_validator(mode="after")
    def _make_sense(self) -> Config:
        algorithm, n = self.algorithm, self.rollout.n
        compares_group = algorithm.spec is not None and algorithm.spec.compares_group
        if n < 2 and (compares_group or algorithm.dynamic_sampling):
            raise ValueError(
                f"rollout.n={n} and algorithm.name={algorithm.name}: a group of one has no "
                "baseline and no signal; set rollout.n to 2 or more"
            )
        if (self.data.ptx is None) != (algorithm.ptx_coef == 0):
            raise ValueError(
                f"data.ptx={self.data.ptx} and algorithm.ptx_coef={algorithm.ptx_coef:g}: the PTX "
                "term needs demonstrations and a coefficient; set both, or neither"
            )
        if self.rollout.sampling.temperature == 0:
            raise ValueError(
                "rollout.sampling.temperature=0: all completions of a prompt would be equal, and "
                "log-probs are divided by it; set it above 0. Evaluation decodes greedily in any "
                "case"
            )
        if algorithm.reference_is_served and self.rollout.sampling.temperature != 1:
            server = mask_text(str(algorithm.ref_model_path))
            raise ValueError(
                f"rollout.sampling.temperature={self.rollout.sampling.temperature:g} and "
                f"algorithm.ref_model_path={server}: a server gives log-probs at temperature 1; "
                "set the temperature to 1, or name a model directory"
            )
        names = ("overall", *self.rewards.functions)
        if algorithm.filter_key is not None and algorithm.filter_key not in names:
            raise ValueError(
                f"algorithm.filter_key={algorithm.filter_key} names no reward function; it may be "
                f"one of {', '.join(names)}"
            )
        curriculum = self.data.curriculum
        if curriculum is not None and curriculum.key not in self.rewards.functions:
            raise ValueError(
                f"data.curriculum.key={curriculum.key} names no reward function; it may be one of "
                f"{', '.join(self.rewards.functions)}"
            )
        if n < 2 and algorithm.replay is not None:
            raise ValueError(
                f"rollout.n={n} and algorithm.replay: a group of one has no signal; set rollout.n "
                "to 2 or more, or leave algorithm.replay out"
            )
        self._check_mini_batches()
        self._check_validation()
        self._match_reward_function()
        if self.eval.best_of is not None and self.eval.best_of not in self.rewards.functions:
            raise ValueError(
                f"eval.best_of={self.eval.best_of} is not in rewards.functions "
                f"({', '.join(self.rewards.functions)}); name one of them"
            )
        if self.dpo.rounds and n < 2:
            raise ValueError(
                f"rollout.n={n} and dpo.rounds={self.dpo.rounds}: a pair needs two completions of "
                "a prompt; set rollout.n to 2 or more"
            )
        if self.dpo.rounds and self.trainer.max_epochs is not None:
            raise ValueError(
                f"dpo.rounds={self.dpo.rounds} and trainer.max_epochs={self.trainer.max_epochs:g}: "
                "a round learns from what it samples, not from passes over the data; set "
                "trainer.max_steps"
            )
        if self.dpo.rounds and curriculum is not None:
            raise ValueError(
                f"dpo.rounds={self.dpo.rounds} and data.curriculum: only mmr1 train chooses "
                "samples by their pass rates; leave one of them out"
            )
        if self.model.lora is not None and algorithm.ref_model_mixup_alpha < 1:
            raise ValueError(
                "algorithm.ref_model_mixup_alpha and model.lora: a mixture of adapters is no "
                "adapter; leave one of them out"
            )
        if self.trainer.max_epochs is None:  # or the number of steps is not known yet
            self.check_steps()
        if self.hands_adapters:
            self._refuse_what_adapters_alone_cannot()
        if self.resources.colocate:
            self._refuse_what_colocated_engines_cannot()
        if self.environment is not None:
            self._refuse_what_an_environment_cannot()
        return self

    @property
    def hands_adapters(self) -> bool:
        """Rollout engines get the adapters alone, and not merged weights."""
        return self.model.lora is not None and not self.model.lora.merge

    @property
    def rollout_dtype(self) -> Dtype:
        """``rollout.dtype``; ``model.dtype`` if it is not set."""
        return self.rollout.dtype or self.model.dtype

    @property
    def dtypes(self) -> dict[str, Dtype]:
        """Data types of the trainer and of the engine, by the keys that set them."""
        keys = {"model.dtype": self.model.dtype}
        return keys | ({"rollout.dtype": self.rollout.dtype} if self.rollout.dtype else {})

    @property
    def gpu_memory_utilization(self) -> float:
        """``rollout.gpu_memory_utilization``, or its default."""
        own = self.resources.distributed and not self.resources.colocate
        return self.rollout.gpu_memory_utilization or (0.9 if own else 0.5)

    @property
    def max_prompt_tokens(self) -> int:
        """Maximum prompt length: ``rollout.max_model_len`` minus the maximum completion length."""
        return self.rollout.max_model_len - self.rollout.sampling.max_tokens

    @property
    def policy_steps(self) -> int:
        """Steps in which the policy learns: all but those of the critic's warm-up."""
        critic = self.algorithm.critic
        return self.trainer.max_steps - (0 if critic is None else critic.warmup_steps)

    @property
    def uses_bf16(self) -> bool:
        """True if the engine or the trainer computes log-probs in bfloat16."""
        return "bfloat16" in (self.model.dtype, self.rollout_dtype)

    @property
    def parity_tolerance(self) -> float:
        """``rollout.parity_tolerance``, or its default."""
        return self.rollout.parity_tolerance or (0.1 if self.uses_bf16 else 1e-4)

    @property
    def resolved_rollout_is(self) -> Literal["none", "token", "sequence"]:
        """``algorithm.rollout_is`` with ``auto`` resolved."""
        level = self.algorithm.rollout_is
        if level != "auto":
            return level
        is_off_policy = (
            self.rollout.max_off_policy_steps > 0
            or self.rollout_dtype != self.model.dtype
            or self.algorithm.replay is not None
        )
        return "token" if is_off_policy else "none"

    def _refuse_what_adapters_alone_cannot(self) -> None:
        assert self.model.lora is not None
        refused = {
            "model.freeze_vision_tower=false: vLLM adds no adapters to a vision tower": (
                not self.model.freeze_vision_tower
            ),
            "model.lora.load_in_4bit: the engine's weights below them are other ones": (
                self.model.lora.load_in_4bit
            ),
            "dpo.rounds, which hands on merged weights": bool(self.dpo.rounds),
        }
        for why, is_set in refused.items():
            if is_set:
                raise ValueError(
                    f"model.lora.merge=false and {why}; leave model.lora.merge out, or change that"
                )

    def _refuse_what_colocated_engines_cannot(self) -> None:
        resources, rollout = self.resources, self.rollout
        remedies = {
            f"resources.ranks={resources.ranks} engines={resources.engines}": resources.ranks
            != resources.engines
            and "each rank shares its GPU with one engine; set both to the number of GPUs",
            f"rollout.tensor_parallel_size={rollout.tensor_parallel_size}": (
                rollout.tensor_parallel_size > 1
            )
            and "an engine shares the GPU of one rank; set it to 1",
            f"rollout.max_off_policy_steps={rollout.max_off_policy_steps}": (
                rollout.max_off_policy_steps > 0
            )
            and "engines sleep while the ranks learn, and sample nothing ahead; set it to 0",
        }
        for key, remedy in remedies.items():
            if remedy:
                raise ValueError(f"resources.colocate and {key}: {remedy}, or leave colocate out")

    def _refuse_what_an_environment_cannot(self) -> None:
        """What reads a completion as one text, or hands it on without its pictures."""
        algorithm, stop = self.algorithm, self.rollout.sampling.stop
        functions = {f.use or name: name for name, f in self.rewards.functions.items()}
        one_text = "it reads a completion as one text"
        without_pictures = "it keeps completions without what tools showed in them"
        refused = {
            f"algorithm.name={algorithm.name}": (
                algorithm.name == "t_grpo",
                "it shuffles the frames of a video, and a tool would show them in their order",
            ),
            f"algorithm.name={algorithm.name} and its steps": (
                algorithm.name == "process_grpo",
                one_text,
            ),
            "algorithm.step_rewards": (algorithm.step_rewards is not None, one_text),
            "algorithm.replay": (algorithm.replay is not None, without_pictures),
            f"rewards.functions.{functions.get('reward_model')}": (
                "reward_model" in functions,
                one_text,
            ),
            f"dpo.rounds={self.dpo.rounds}": (bool(self.dpo.rounds), without_pictures),
            f"rollout.sampling.stop={list(stop)}": (
                bool(stop),
                "it could end a turn within a call",
            ),
        }
        for key, (is_set, reason) in refused.items():
            if is_set:
                raise ValueError(f"environment and {key}: {reason}; leave one of them out")

    def check_steps(self) -> None:
        """Raises ValueError where ``trainer.max_steps`` is too low for other keys."""
        if self.dpo.rounds > self.trainer.max_steps:
            raise ValueError(
                f"dpo.rounds={self.dpo.rounds} share trainer.max_steps={self.trainer.max_steps}: "
                "a round would have no step; lower the first or raise the second"
            )
        critic, steps = self.algorithm.critic, self.trainer.max_steps
        if critic is not None and critic.warmup_steps >= steps:
            raise ValueError(
                f"algorithm.critic.warmup_steps={critic.warmup_steps} and trainer.max_steps={steps}"
                ": the policy would never learn; lower the first or raise the second"
            )

    def _check_validation(self) -> None:
        trainer = self.trainer
        if (trainer.val_freq or trainer.val_before_train) and self.data.eval is None:
            raise ValueError(
                f"trainer.val_freq={trainer.val_freq} and "
                f"trainer.val_before_train={str(trainer.val_before_train).lower()}: there is "
                "nothing to validate on; set data.eval, or leave them out"
            )
        best = trainer.metric_for_best_model or ""
        if not best.startswith("eval/"):
            return
        if best.startswith("eval/sampled") and not self.eval.n:
            raise ValueError(
                f"trainer.metric_for_best_model={best} and eval.n=0: no completion is sampled; "
                "set eval.n, or take eval/greedy"
            )
        if not trainer.val_freq or trainer.save_steps % trainer.val_freq:
            raise ValueError(
                f"trainer.metric_for_best_model={best} and trainer.val_freq={trainer.val_freq}: "
                "every checkpoint needs a validation; set trainer.val_freq, and "
                f"trainer.save_steps ({trainer.save_steps}) to a multiple of it"
            )

    def _check_mini_batches(self) -> None:
        algorithm, batch_size = self.algorithm, self.rollout.batch_size
        sizes = {"algorithm.ppo_mini_batch_size": algorithm.ppo_mini_batch_size}
        if algorithm.critic is not None:
            own = algorithm.critic.ppo_mini_batch_size
            sizes["algorithm.critic.ppo_mini_batch_size"] = own
        for key, size in sizes.items():
            if size is not None and batch_size % size:
                raise ValueError(
                    f"{key}={size} does not divide rollout.batch_size={batch_size}: mini-batches "
                    "have equally many prompts; change one of them"
                )
        if self.mini_batches * algorithm.ppo_epochs < 2:
            for key, is_set in (
                (f"algorithm.ppo_kl_coef={algorithm.ppo_kl_coef:g}", bool(algorithm.ppo_kl_coef)),
                ("algorithm.name=kl_cov", algorithm.name == "kl_cov"),
            ):
                if is_set:
                    raise ValueError(
                        f"{key} and algorithm.ppo_mini_batch_size={algorithm.ppo_mini_batch_size}, "
                        f"which is all of rollout.batch_size={batch_size}: the only update of a "
                        "rollout does not differ from the policy that sampled, so the KL to it is "
                        "0; raise algorithm.ppo_epochs or lower algorithm.ppo_mini_batch_size"
                    )
        if algorithm.ptx_coef and algorithm.ptx_batch_size < self.mini_batches:
            raise ValueError(
                f"algorithm.ptx_batch_size={algorithm.ptx_batch_size} and {self.mini_batches} "
                "mini-batches per rollout: each takes its share of the demonstrations; raise "
                "algorithm.ptx_batch_size or algorithm.ppo_mini_batch_size"
            )

    @property
    def mini_batches(self) -> int:
        """Optimizer steps of the policy per pass over a rollout."""
        batch_size = self.rollout.batch_size
        return batch_size // (self.algorithm.ppo_mini_batch_size or batch_size)

    @property
    def critic_mini_batch_size(self) -> int | None:
        """Prompts per optimizer step of the critic; None for all."""
        algorithm = self.algorithm
        own = algorithm.critic and algorithm.critic.ppo_mini_batch_size
        return own or algorithm.ppo_mini_batch_size

    def _match_reward_function(self) -> None:
        """A reward function that only one algorithm can compute, and that algorithm, need both."""
        spec = self.algorithm.spec
        if spec is None:  # an algorithm of the user's own may need any reward function
            return
        functions = self.rewards.functions.items()
        keys = {function.use or key: key for key, function in functions}
        if spec.reward_function is not None and spec.reward_function not in keys:
            raise ValueError(
                f"algorithm.name={spec.name} needs the reward function {spec.reward_function}, "
                f"which is not in rewards.functions; add rewards.functions.{spec.reward_function}"
                ", or choose another algorithm"
            )
        for other in algorithm_specs().values():
            if other.reward_function in keys and other.reward_function != spec.reward_function:
                raise ValueError(
                    f"rewards.functions.{keys[other.reward_function]} can only be computed with "
                    f"algorithm.name={other.name}, and it is {spec.name}; set "
                    f"algorithm.name={other.name}, or leave the reward function out"
                )
