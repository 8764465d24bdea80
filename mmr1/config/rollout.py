"""The ``rollout`` section: sampling, and the engine that samples."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from pydantic import Field, model_validator

from mmr1.config.views import ViewsConfig
from mmr1.engines import EngineConfig, engine, vllm_arguments
from mmr1.engines.vllm import VllmConfig
from mmr1.section import TRAINING, Coefficient, Count, Fraction, Need, Positive, Section

if TYPE_CHECKING:
    Engine = EngineConfig
else:
    Engine = engine.union()

_OTHER_SAMPLERS = frozenset(
    (
        "repetition_penalty",
        "presence_penalty",
        "frequency_penalty",
        "no_repeat_ngram_size",
        "bad_words",
        "logit_bias",
        "allowed_token_ids",
        "min_tokens",
        "min_new_tokens",
    )
)
"""Sampling parameters of the engines that no key has."""


class SamplingConfig(Section):
    """Sampling parameters as the engines take them: ``rollout.sampling`` in the code.

    It is not a section of the file. Greedy decoding has temperature 0.
    """

    temperature: float = Field(1.0, ge=0)
    top_p: float = Field(1.0, gt=0, le=1)
    top_k: Count = 0
    min_p: Fraction = 0.0
    stop: tuple[str, ...] = ()
    max_tokens: Positive = 1024

    def greedy(self) -> SamplingConfig:
        """The same limits, with greedy decoding."""
        return self.changed(temperature=0.0, top_p=1.0, top_k=0)


def _samples_itself(c: Any) -> bool:
    """The engine is part of this process; vLLM runs in a separate one."""
    return c.samples and c.in_one_process and not c.rollout.uses_vllm


def _continues_nothing(c: Any) -> bool:
    queue = c.rollout.queue
    return bool(queue.at_new_weights != "continue" and queue.sets("kv_cache"))


def _window_beyond_groups(c: Any) -> bool:
    groups = (c.rollout.max_off_policy_steps + 1) * c.data.train_batch_size
    return bool(c.rollout.streams and c.rollout.queue.window > groups)


def _draws_or_keeps(c: Any) -> bool:
    resamples = c.algorithm.resamples
    return resamples is not None and bool(resamples.gen_batch_size or resamples.keep_surplus)


def _scores_batches(c: Any) -> bool:
    return any(getattr(reward, "call", None) == "batch" for reward in c.rewards.values())


class QueueConfig(Section):
    """The queue of groups between sampling and learning."""

    needs: ClassVar[tuple[Need, ...]] = (
        Need(
            ("rollout.queue.kv_cache", "rollout.queue.at_new_weights"),
            _continues_nothing,
            "no completion continues with new weights, and none has keys and values to keep; leave "
            "kv_cache out",
            ("rollout.queue.kv_cache=keep",),
        ),
        Need(
            ("rollout.queue.window", "rollout.queue.at_new_weights"),
            lambda c: not c.rollout.streams and c.rollout.queue.sets("window"),
            "whole steps are sampled in turn, and no group passes another; leave window out",
            ("rollout.queue.window=2",),
        ),
        Need(
            ("rollout.queue.at_new_weights", "rollout.max_off_policy_steps"),
            lambda c: c.rollout.streams and c.rollout.max_off_policy_steps == 0,
            "nothing is sampled while the trainer learns; set max_off_policy_steps to 1 or more",
            ("rollout.queue.at_new_weights=continue",),
            commands=TRAINING,
        ),
        Need(
            ("rollout.queue.window", "rollout.max_off_policy_steps", "data.train_batch_size"),
            _window_beyond_groups,
            "no more groups are under way than (max_off_policy_steps + 1) * train_batch_size; "
            "lower the window",
            (
                "rollout.max_off_policy_steps=1",
                "rollout.queue.at_new_weights=continue",
                "rollout.queue.window=3",
                "data.train_batch_size=1",
            ),
        ),
        Need(
            ("rollout.queue.at_new_weights", "full_determinism"),
            lambda c: c.rollout.streams and c.full_determinism,
            "which weights sample a token depends on timing; leave one of them out",
            (
                "rollout.max_off_policy_steps=1",
                "rollout.queue.at_new_weights=continue",
                "full_determinism=true",
            ),
        ),
        Need(
            ("rollout.queue.at_new_weights", "model.lora.merge"),
            lambda c: c.rollout.streams and c.model.sync_adapters_only,
            "vLLM cannot exchange the adapters of unfinished completions; leave one of them out",
            (
                "rollout.max_off_policy_steps=1",
                "rollout.queue.at_new_weights=continue",
                "model.lora.rank=4",
                "model.lora.merge=false",
            ),
        ),
        Need(
            ("rollout.queue.at_new_weights", "algorithm.filter_groups.type"),
            lambda c: c.rollout.streams and _draws_or_keeps(c),
            "streaming draws a prompt for each group that is dropped, and keeps no others; leave "
            "gen_batch_size and keep_surplus out",
            (
                "rollout.max_off_policy_steps=1",
                "rollout.queue.at_new_weights=continue",
                "algorithm=dapo",
                "algorithm.filter_groups.gen_batch_size=8",
            ),
        ),
        Need(
            ("rollout.queue.at_new_weights", "rewards"),
            lambda c: c.rollout.streams and _scores_batches(c),
            "groups are scored as they end, and no reward with call=batch sees all of a step; "
            "set call=group, or leave at_new_weights out",
            (
                "rollout.max_off_policy_steps=1",
                "rollout.queue.at_new_weights=continue",
                "rewards={own: {type: 'f.py:g', call: batch}}",
            ),
        ),
    )

    at_new_weights: Literal["wait", "restart", "continue"] = Field(
        "wait",
        description="Completions under way when new weights come (vLLM's wait, abort and keep). "
        "wait: the weights wait for the steps that were begun. Else the groups of the next "
        "max_off_policy_steps steps are sampled together, and an update waits for its own only. "
        "restart: such completions begin again; continue: they continue with the new weights "
        "(verl, slime: partial_rollout)",
    )
    kv_cache: Literal["recompute", "keep"] = Field(
        "recompute",
        description="Keys and values of completions that continue. recompute: each "
        "token has the log-prob of the weights that sampled it; keep: of a mixture of them and "
        "older ones (prime-rl, SkyRL)",
    )
    window: Count = Field(
        0,
        description="Groups, from the oldest on, among which those that have ended pass those that "
        "have not (torchtitan); 0: none does. A token is then up to max_off_policy_steps + "
        "ceil((window - 1) / data.train_batch_size) steps old",
    )


class RolloutConfig(Section):
    """Sampling of completions."""

    needs: ClassVar[tuple[Need, ...]] = (
        Need(
            ("rollout.max_restarts", "resources.engines"),
            lambda c: _samples_itself(c) and c.rollout.sets("max_restarts"),
            "this engine is part of this process, which cannot restart it; leave it out, sample "
            "with vLLM, or run on Ray: resources.ray={}, or several ranks or engines",
            ("rollout.engine=hf", "rollout.max_restarts=1"),
            commands=TRAINING,
        ),
        Need(
            ("rollout.timeout_s", "resources.engines"),
            lambda c: _samples_itself(c) and c.environment is None and c.rollout.sets("timeout_s"),
            "this engine is part of this process, which waits for it; leave it out, sample with "
            "vLLM, or run on Ray: resources.ray={}, or several ranks or engines",
            ("rollout.engine=hf", "rollout.timeout_s=60"),
            commands=TRAINING,
        ),
    )

    n: Positive = Field(8, description="Group size: completions per prompt (TRL: num_generations)")
    max_prompt_length: Positive = Field(
        3072,
        description="Maximum prompt length in tokens; vLLM's max_model_len is the sum of the two",
    )
    max_response_length: Positive = Field(
        1024,
        description="Maximum completion length in tokens, all turns together (TRL: "
        "max_completion_length)",
    )
    temperature: Coefficient = Field(
        1.0,
        description="Sampling temperature, above 0: log-probs are divided by it. Evaluation "
        "decodes greedily in any case",
    )
    top_p: float = Field(
        1.0, gt=0, le=1, description="Nucleus sampling; 1: off. With it or min_p, top_k 0 means 512"
    )
    top_k: Count = Field(0, description="Sample from the k most probable tokens; 0: off")
    min_p: Fraction = Field(
        0.0, description="Minimum probability relative to the most probable token; 0: off"
    )
    stop: tuple[str, ...] = Field((), description="Stop strings; they stay in the completion")
    max_off_policy_steps: Count = Field(
        0,
        description="0: synchronous rollouts. k: asynchronous rollouts, sampled with weights that "
        "are at most k updates old (torchtitan: target_offpolicy_steps, TRL: max_staleness, AReaL: "
        "max_head_offpolicyness)",
    )
    queue: QueueConfig = Field(
        default_factory=QueueConfig,
        description="How new weights and completions under way meet",
    )
    engine: Engine = Field(
        default_factory=engine.first, description="vLLM, transformers, or your own"
    )
    views: ViewsConfig | None = Field(
        None,
        description="Sample a share of each group under another view of its pictures; null: none",
    )
    timeout_s: Coefficient = Field(
        3600,
        description="Seconds in which an engine answers and ends a completion; a slower one counts "
        "as hung",
    )
    max_restarts: Count = Field(3, description="Restarts of a crashed or hung engine, in one run")
    parity_tolerance: Coefficient | None = Field(
        None,
        description="Maximum log-prob gap between engine and trainer at start-up, in nats. "
        "Float32: of each token, null: 1e-4. Bfloat16: mean per prompt, null: 0.1",
    )

    @model_validator(mode="before")
    @classmethod
    def _one_distribution(cls, values: Any) -> Any:
        if isinstance(values, Mapping) and (given := sorted(_OTHER_SAMPLERS & values.keys())):
            raise ValueError(
                f"{given[0]}: it makes the engine sample from another distribution than that of "
                "the trainer's log-probs, which is the model's at rollout.temperature; a reward "
                "can teach the same, such as 'repetition' or 'length_bonus'"
            )
        return values

    @property
    def sampling(self) -> SamplingConfig:
        """Temperature, limits and stop strings, as an engine takes them."""
        return SamplingConfig(
            temperature=self.temperature,
            top_p=self.top_p,
            top_k=self.top_k,
            min_p=self.min_p,
            stop=self.stop,
            max_tokens=self.max_response_length,
        )

    @property
    def cuts(self) -> bool:
        """True if some tokens are never sampled, for being improbable."""
        return self.top_p < 1 or self.top_k > 0 or self.min_p > 0

    @property
    def max_model_len(self) -> int:
        """Maximum tokens of prompt and completion together."""
        return self.max_prompt_length + self.max_response_length

    @property
    def streams(self) -> bool:
        """True if groups are learned from as they end, and not step after step."""
        return self.queue.at_new_weights != "wait"

    @property
    def uses_vllm(self) -> bool:
        """True if the engine is vLLM, on separate GPUs or on those of the ranks."""
        return isinstance(self.engine, VllmConfig)

    @property
    def colocated(self) -> bool:
        """True if engines share the GPUs of the ranks."""
        return self.engine.colocate

    @property
    def speculates(self) -> bool:
        """True if vLLM verifies drafts with the model that samples."""
        engine = self.engine
        return isinstance(engine, VllmConfig) and vllm_arguments.speculates(engine.engine_kwargs)

    @property
    def offload_trainer(self) -> bool:
        """True if the trainer is in main memory while colocated engines sample."""
        return isinstance(self.engine, VllmConfig) and self.engine.offload_trainer

    @property
    def gpus_per_engine(self) -> int:
        """GPUs per engine; 1 for all but vLLM."""
        return self.engine.gpus if isinstance(self.engine, VllmConfig) else 1
