"""Rollout engines by name: what they can do, and what a configuration asks of them.

Imports no torch, because the configuration is checked against abilities before anything is loaded.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mmr1.config import Config, CustomEngineConfig
from mmr1.registry import ENGINES, check_options
from mmr1.rollout.abilities import PLAIN, STRENGTHS, Abilities

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
    """The builder of a rollout engine, and its abilities.

    Attributes:
        build: Builds the engine of an ``EngineSetting`` and ``rollout.engine.options``.
        require: Raises ValueError, with the remedy, if what it needs is not installed.
        preload: Begins to load what the engine needs while this process does other things.
    """

    build: Callable[..., Any]
    abilities: Abilities = PLAIN
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


def abilities_of(config: Config) -> Abilities:
    """The abilities of the engine that ``rollout.engine`` names."""
    return engine_type(config).abilities


def _with_options(kind: EngineType, engine: CustomEngineConfig) -> EngineType:
    check_options("rollout.engine", engine.use, kind.build, engine.options, given=1)
    return replace(kind, build=partial(kind.build, **engine.options)) if engine.options else kind


def transfers_weights(config: Config) -> bool:
    """True if weights reach engines by vLLM's transfer, from GPU to GPU; asked beside a GPU."""
    import torch

    if "nccl" not in abilities_of(config).channels or config.model.sync_adapters_only:
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
    return config.full_determinism or abilities_of(config).at_new_weights == "wait"


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
    can, rollout = abilities_of(config), config.rollout
    name = f"rollout.engine={rollout.engine_name}"
    trains = config.command != "eval"
    ahead = rollout.max_off_policy_steps if trains else 0
    at_new_weights = rollout.queue.at_new_weights if trains else "wait"
    if "shared" in can.channels and ahead and not config.distributed:
        raise ValueError(
            f"rollout.max_off_policy_steps={ahead} and {name}: that engine samples from the very "
            "model that is being updated; set rollout.engine=vllm or rollout.max_off_policy_steps=0"
        )
    if STRENGTHS.index(at_new_weights) > STRENGTHS.index(can.at_new_weights):
        why = _LIMITS[can.at_new_weights]
        raise ValueError(f"rollout.queue.at_new_weights={at_new_weights} and {name}, {why}")
    if rollout.colocated and not can.rests:
        raise ValueError(
            f"rollout.engine.colocate=true and {name}, which cannot leave a GPU to a rank; give it "
            "the method rest (mmr1/rollout/protocol.py) and declare Abilities(rests=True), or "
            "leave rollout.engine.colocate out"
        )
    if config.model.sync_adapters_only and not can.adapters:
        raise ValueError(
            f"model.lora.merge=false and {name}, which takes whole weights; leave model.lora.merge "
            "out, or set rollout.engine=vllm"
        )


_LIMITS = {
    "wait": "which samples a batch to its end; set rollout.engine=vllm or leave at_new_weights out",
    "restart": "which takes no new weights while it samples; set it to restart, or "
    "rollout.engine=vllm",
}


def returns_experts(config: Config) -> bool:
    """True if completions are to say which experts of a mixture their tokens were sent to."""
    return config.command != "eval" and config.algorithm.compares_experts
