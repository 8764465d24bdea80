"""Rollout engines by name: what they can do, and what a configuration asks of them.

Nobody asks for the name of an engine. What differs between engines is a capability of its
``EngineType``. Imports no torch, because the configuration is checked against capabilities before
anything is loaded.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mmr1.config import Config, CustomEngineConfig
from mmr1.registry import ENGINES, check_options

if TYPE_CHECKING:
    from mmr1.vision.families.family import ModelFamily
    from mmr1.vision.features import FeatureCache
    from mmr1.vision.prepare import MediaCache


@dataclass(frozen=True, slots=True)
class EngineSetting:
    """The inputs for building an engine.

    Attributes:
        family: Processor and tokens of the model.
        media: Prepared media.
        model: The transformers model that is in this process: the policy's, or a copy for an
            engine that samples from it. None where there is none.
        features: Where those of a frozen vision tower are kept.
        log: File for the output of a process that the engine starts.
        on_ray: The engine has this process, an actor on Ray, to itself. Else it shares the process
            of the trainer.
        colocated: It shares its GPU with a rank, and leaves it to that by sleeping.
        left_out: Beginnings of the names, in the model's files, of weights that a colocated engine
            is never sent: it keeps what it has read.
    """

    config: Config
    family: ModelFamily
    media: MediaCache
    model: Any | None = None
    features: FeatureCache | None = None
    log: Path | None = None
    on_ray: bool = False
    colocated: bool = False
    left_out: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class EngineType:
    """The capabilities of a rollout engine, and its builder.

    An engine needs none of the capabilities: with the methods of ``protocol.Engine`` it trains in
    one process, ahead, streaming, with an environment and on Ray.

    Attributes:
        build: Builds the engine of an ``EngineSetting`` and ``rollout.engine.options``.
        samples_from_policy: It samples from a transformers model in its process. Without Ray that
            is the policy itself, so it needs no weights and cannot sample ahead.
        samples_on: Completions end one by one while others come. Otherwise ``poll`` samples all of
            a ``submit`` to the end, and the turns of conversations wait for each other.
        updates_in_flight: It takes new weights while completions are under way: they continue with
            these, and each says which sampled which of its tokens.
        receives_on_gpus: It is a ``ReceivingEngine``: weights reach its GPUs by vLLM's own
            transfer, over NCCL or IPC, as the model's files have them. Otherwise ``load`` is
            given them, on Ray from its object store.
        sleeps: It is a ``SleepingEngine``, so it can share the GPU of a rank.
        takes_adapters: ``load`` takes LoRA adapters alone (``model.lora.merge=false``).
        require: Raises ValueError, with the remedy, if what it needs is not installed.
        preload: Begins to load what the engine needs while this process does other things.
    """

    build: Callable[..., Any]
    samples_from_policy: bool = False
    samples_on: bool = False
    updates_in_flight: bool = False
    receives_on_gpus: bool = False
    sleeps: bool = False
    takes_adapters: bool = False
    require: Callable[[], None] = lambda: None
    preload: Callable[[], object] = lambda: None


def engine_type(config: Config) -> EngineType:
    """The type of the engine that ``rollout.engine`` names.

    Raises:
        ValueError: The name is unknown or names something else, or its options do not fit.
    """
    name, engine = config.rollout.engine_name, config.rollout.engine
    kind = ENGINES.load(name)
    if isinstance(kind, type):
        kind = EngineType(kind)
    if not isinstance(kind, EngineType):
        raise ValueError(
            f"rollout.engine={name} is a {type(kind).__name__}; it must name the class of an "
            "engine, or an mmr1.rollout.engines.EngineType"
        )
    return _with_options(kind, engine) if isinstance(engine, CustomEngineConfig) else kind


def _with_options(kind: EngineType, engine: CustomEngineConfig) -> EngineType:
    check_options("rollout.engine", engine.use, kind.build, engine.options, given=1)
    return replace(kind, build=partial(kind.build, **engine.options)) if engine.options else kind


def transfers_weights(config: Config) -> bool:
    """True if weights reach engines by vLLM's transfer, from GPU to GPU; asked beside a GPU."""
    import torch

    if not engine_type(config).receives_on_gpus or config.model.sync_adapters_only:
        return False
    return torch.cuda.is_available()


def hands_over_gpu_memory(config: Config) -> bool:
    """True if the trainer hands an engine on its GPU the memory of its weights (CUDA IPC).

    In one process an engine on several GPUs shares one of them; it gets weights by main memory.
    """
    if not transfers_weights(config):
        return False
    alone = not config.distributed and config.rollout.gpus_per_engine == 1
    return config.rollout.colocated or alone


def samples_together(config: Config) -> bool:
    """True if turns of conversations are sampled together, and all waited for."""
    return config.full_determinism or not engine_type(config).samples_on


def preload_engine(config: Config) -> None:
    """Begin to import what the rollout engine of this process will need; does not wait."""
    if not config.distributed:
        engine_type(config).preload()


def check_engine(config: Config) -> None:
    """Refuse an engine that cannot do what is asked, or is not installed, before loading.

    Raises:
        ValueError: Says what to set or to install.
    """
    check_capabilities(config)
    engine_type(config).require()


def check_capabilities(config: Config) -> None:
    """Refuse a configuration that asks for what the engine cannot do.

    Raises:
        ValueError: Says what to set instead.
    """
    kind, rollout = engine_type(config), config.rollout
    name = f"rollout.engine={rollout.engine_name}"
    trains = config.command != "eval"
    ahead = rollout.max_off_policy_steps if trains else 0
    at_new_weights = rollout.queue.at_new_weights if trains else "wait"
    if kind.samples_from_policy and ahead and not config.distributed:
        raise ValueError(
            f"rollout.max_off_policy_steps={ahead} and {name}: that engine samples from the very "
            "model that is being updated; set rollout.engine=vllm or rollout.max_off_policy_steps=0"
        )
    if at_new_weights != "wait" and not kind.samples_on:
        raise ValueError(
            f"rollout.queue.at_new_weights={at_new_weights} and {name}, which samples a batch to "
            "its end; set rollout.engine=vllm or leave at_new_weights out"
        )
    if at_new_weights == "continue" and not kind.updates_in_flight:
        raise ValueError(
            f"rollout.queue.at_new_weights=continue and {name}, which takes no new weights while "
            "it samples; set it to restart, or rollout.engine=vllm"
        )
    if rollout.colocated and not kind.sleeps:
        raise ValueError(
            f"rollout.engine.colocate=true and {name}, which cannot leave a GPU to a rank; give it "
            "sleep and wake_up (mmr1/rollout/protocol.py) and its EngineType sleeps=True, or leave "
            "rollout.engine.colocate out"
        )
    if config.model.sync_adapters_only and not kind.takes_adapters:
        raise ValueError(
            f"model.lora.merge=false and {name}, which takes whole weights; leave model.lora.merge "
            "out, or set rollout.engine=vllm"
        )


def returns_experts(config: Config) -> bool:
    """True if completions are to say which experts of a mixture their tokens were sent to."""
    return config.command != "eval" and config.algorithm.compares_experts
