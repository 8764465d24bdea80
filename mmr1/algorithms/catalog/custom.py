"""Advantages and losses from a user's own code.

``use`` names a function that makes one, as the functions of this package do; ``options`` are its
keyword arguments.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, TypeVar

import torch

from mmr1.algorithms.interface import Advantage, AdvantageInputs, Loss, LossInputs, of_shape
from mmr1.config import CustomAdvantage, CustomLoss
from mmr1.registry import Registry, check_options

ADVANTAGES = Registry("advantage", {}, group="mmr1.advantages")
LOSSES = Registry("loss", {}, group="mmr1.losses")
T = TypeVar("T")
Inputs = TypeVar("Inputs", AdvantageInputs, LossInputs)


def build_advantage(section: CustomAdvantage) -> Advantage:
    """Load a custom advantage. Raises ValueError if it cannot be built, or lacks its critic."""
    advantage = _made(ADVANTAGES, "algorithm.advantage", section.use, section.options, Advantage)
    if (section.critic is not None) != (advantage.returns is not None):
        raise ValueError(
            f"algorithm.advantage.use={section.use}: a critic learns the returns of its Advantage; "
            "set both algorithm.advantage.critic={} and Advantage(returns=...), or neither"
        )
    return replace(advantage, of_tokens=_checked(advantage.of_tokens, "advantage", section.use))


def build_loss(section: CustomLoss) -> Loss:
    """Load a custom loss. Raises ValueError if it cannot be built."""
    loss = _made(LOSSES, "algorithm.loss", section.use, section.options, Loss)
    return replace(loss, of_tokens=_checked(loss.of_tokens, "loss", section.use))


def _checked(
    of_tokens: Callable[[Inputs], torch.Tensor], kind: str, use: str
) -> Callable[[Inputs], torch.Tensor]:
    whose = f"algorithm.{kind}.use={use}: of_tokens"
    wanted = f"[B, R], the {kind} of each token"
    return lambda x: of_shape(of_tokens(x), x.mask.shape, whose, wanted)


def _made(registry: Registry, key: str, use: str, options: dict[str, Any], wanted: type[T]) -> T:
    build = registry.load(use)
    check_options(key, use, build, options)
    made = build(**options)
    if not isinstance(made, wanted):
        raise ValueError(
            f"{key}.use={use} returned {type(made).__name__}; it must return an "
            f"mmr1.algorithms.{wanted.__name__}"
        )
    return made
