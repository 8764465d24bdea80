"""The rollout engine that a configuration names, put together by its capabilities."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from mmr1.config import Config
from mmr1.environments.build import build_environment
from mmr1.rollout.conversations import ConversationEngine
from mmr1.rollout.engine import ReceivingEngine, RolloutEngine, SleepingEngine, TurnEngine
from mmr1.rollout.engines import EngineSetting, engine_type, samples_at_once
from mmr1.rollout.fallbacks import BatchedTurns, CollectedTransfer
from mmr1.rollout.prefetching import PrefetchingEngine
from mmr1.vision.families.family import ModelFamily
from mmr1.vision.features import FeatureCache
from mmr1.vision.prepare import MediaCache


def check_gpus(config: Config) -> None:
    """Refuse an engine that asks for more GPUs than this machine has, before anything is loaded.

    Raises:
        ValueError: ``rollout.engine.tensor_parallel_size`` is too high.
    """
    engine_gpus = config.rollout.tensor_parallel_size
    if engine_gpus == 1 or config.distributed:
        return  # on Ray, other machines may have the GPUs
    if (gpus := torch.cuda.device_count()) < engine_gpus:
        raise ValueError(
            f"rollout.engine.tensor_parallel_size={engine_gpus}: an engine needs that many GPUs, "
            f"and this machine has {gpus}; set it to {max(gpus, 1)}"
        )


@dataclass(frozen=True, slots=True)
class BuiltEngine:
    """One engine behind all protocols.

    Attributes:
        rollout: As it samples completions.
        turns: As it samples the turns of conversations.
        receiving: As it is sent weights on Ray.
        sleeping: As it gives up its memory; None if it cannot.
    """

    rollout: RolloutEngine
    turns: TurnEngine
    receiving: ReceivingEngine
    sleeping: SleepingEngine | None


def assemble(setting: EngineSetting) -> BuiltEngine:
    """Build an engine. What it cannot do itself is made of what it can."""
    config, kind = setting.config, engine_type(setting.config)
    engine = kind.build(setting)
    rollout: RolloutEngine = engine
    if kind.streams:
        rollout = PrefetchingEngine(engine, setting.media, config.full_determinism)
    return BuiltEngine(
        rollout,
        turns=engine if kind.holds_conversations else BatchedTurns(rollout, setting.family),
        receiving=engine if kind.receives_transfers else CollectedTransfer(rollout),
        sleeping=engine if kind.sleeps else None,
    )


def build_engine(
    config: Config,
    family: ModelFamily,
    media: MediaCache,
    log: Path,
    model: Any,
    features: FeatureCache | None = None,
) -> RolloutEngine:
    """The rollout engine that ``rollout.engine`` names.

    One that samples from the policy itself samples from ``model``, and shares the ``features`` of
    its frozen vision tower.
    """
    built = assemble(EngineSetting(config, family, media, model, features, log))
    return with_conversations(config, built.rollout, built.turns, family, media)


def with_conversations(
    config: Config, engine: RolloutEngine, turns: TurnEngine, family: ModelFamily, media: MediaCache
) -> RolloutEngine:
    """The engine with the environment of the configuration, if there is one, between the policy's
    turns.

    Args:
        turns: The engine as it samples turns.
    """
    if config.environment is None:
        return engine
    try:
        environment = build_environment(config.environment, config.rollout.timeout_s)
    except BaseException:
        engine.close()
        raise
    return ConversationEngine(
        engine,
        turns,
        environment,
        config.environment,
        family,
        media,
        samples_at_once(config),
        system_prompt=config.data.system_prompt,
    )
