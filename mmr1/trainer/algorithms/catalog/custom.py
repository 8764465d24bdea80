"""Advantages and losses from a user's own code.

``use`` names a function that makes one, as the functions of this package do; ``options`` are its
keyword arguments.
"""

from __future__ import annotations

import inspect
from typing import Any, TypeVar

from mmr1.config import CustomAdvantage, CustomLoss
from mmr1.registry import Registry
from mmr1.trainer.algorithms.algorithm import Advantage, Loss

ADVANTAGES = Registry("advantage", {}, group="mmr1.advantages")
LOSSES = Registry("loss", {}, group="mmr1.losses")
T = TypeVar("T")


def build_advantage(section: CustomAdvantage) -> Advantage:
    """Load a custom advantage. Raises ValueError if it cannot be built, or lacks its critic."""
    advantage = _made(ADVANTAGES, "algorithm.advantage", section.use, section.options, Advantage)
    if (section.critic is not None) != (advantage.returns is not None):
        raise ValueError(
            f"algorithm.advantage.use={section.use}: a critic learns the returns of its Advantage; "
            "set both algorithm.advantage.critic={} and Advantage(returns=...), or neither"
        )
    return advantage


def build_loss(section: CustomLoss) -> Loss:
    """Load a custom loss. Raises ValueError if it cannot be built."""
    return _made(LOSSES, "algorithm.loss", section.use, section.options, Loss)


def _made(registry: Registry, key: str, use: str, options: dict[str, Any], wanted: type[T]) -> T:
    build = registry.load(use)
    try:
        inspect.signature(build).bind(**options)
    except TypeError as error:
        raise ValueError(f"{key}.options do not fit {key}.use={use}: {error}") from error
    made = build(**options)
    if not isinstance(made, wanted):
        raise ValueError(
            f"{key}.use={use} returned {type(made).__name__}; it must return an "
            f"mmr1.trainer.algorithms.{wanted.__name__}"
        )
    return made
