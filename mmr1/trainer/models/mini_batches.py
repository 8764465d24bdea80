"""Mini-batches: the parts of a rollout, of which each optimizer step of a pass takes one.

They are of whole groups, in the order of the rollout, as in verl and EasyR1.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

import torch

from mmr1.types import ScoredGroup

Item = TypeVar("Item")


def mini_batch_of(groups: int, size: int | None) -> tuple[int, ...]:
    """The mini-batch of each group, from 0; ``size`` groups each, or all in one. The last may have
    fewer.

    >>> mini_batch_of(5, 2), mini_batch_of(3, None)
    ((0, 0, 1, 1, 2), (0, 0, 0))
    """
    return tuple(group // (size or groups) for group in range(groups))


def round_robin(items: Sequence[Item], mini_batches: int) -> tuple[tuple[Item, ...], ...]:
    """Give items that belong to no mini-batch to the mini-batches, in turn.

    >>> round_robin("abc", 2)
    (('a', 'c'), ('b',))
    """
    return tuple(tuple(items[index::mini_batches]) for index in range(mini_batches))


def rows_of(groups: Sequence[ScoredGroup], of_group: Sequence[int], index: int) -> torch.Tensor:
    """``[B]`` bool: the sequences of mini-batch ``index``."""
    return torch.tensor(
        [mine == index for s, mine in zip(groups, of_group, strict=True) for _ in s.rewards],
        dtype=torch.bool,
    )
