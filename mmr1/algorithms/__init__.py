"""Advantages, losses and KL: pure functions, and one file for each algorithm or family of them.

``catalog/`` has the advantages and the losses, the other files what they are made of.
"""

from __future__ import annotations

from mmr1.algorithms.interface import (
    Advantage,
    AdvantageInputs,
    Loss,
    LossInputs,
    per_completion,
)

__all__ = ["Advantage", "AdvantageInputs", "Loss", "LossInputs", "per_completion"]
