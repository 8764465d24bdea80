"""transformers as the rollout engine."""

from __future__ import annotations

from typing import ClassVar, Literal

from mmr1.engines import Abilities, EngineConfig, engine


@engine("hf", body="mmr1.rollout.hf:build")
class HfConfig(EngineConfig):
    """transformers, from the very model that is trained."""

    abilities: ClassVar[Abilities] = Abilities(frozenset({"shared", "memory"}))
    type: Literal["hf"] = "hf"
