"""A batch of groups cut into forwards that each cost at most a budget."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import torch

from mmr1.trainer.forward.sequences import GroupInput


@dataclass(frozen=True)
class MicroBatch:
    """What one forward and backward takes.

    Attributes:
        groups: Whole groups, or parts of groups.
        rows: ``[b]`` int64: which sequences of the batch these are, so that
            ``advantages[rows]`` and the like go with them.
    """

    groups: tuple[GroupInput, ...]
    rows: torch.Tensor


@dataclass(frozen=True)
class _Piece:
    """A group, or a part of one, with its rows in the batch."""

    group: GroupInput
    rows: tuple[int, ...]

    @property
    def tokens(self) -> int:
        return len(self.group.prompt_ids) + sum(len(row) for row in self.group.completions)


@dataclass
class _Bin:
    pieces: list[_Piece] = field(default_factory=list)
    digests: set[str] = field(default_factory=set)
    cost: float = 0.0

    def added_cost(self, piece: _Piece, vision_token_cost: float) -> float:
        """An image that another prompt here shows already costs nothing more."""
        new = {m.digest: m.tokens for m in piece.group.media if m.digest not in self.digests}
        return piece.tokens + vision_token_cost * sum(new.values())

    def add(self, piece: _Piece, vision_token_cost: float) -> None:
        self.cost += self.added_cost(piece, vision_token_cost)
        self.pieces.append(piece)
        self.digests.update(m.digest for m in piece.group.media)


def micro_batches(
    groups: Sequence[GroupInput],
    budget: float,
    vision_token_cost: float = 1.0,
    keep: torch.Tensor | None = None,
    whole: bool = False,
) -> list[MicroBatch]:
    """Cut a batch by cost: its tokens, a shared prompt's once, and its vision tokens once more.

    A group that fits the budget stays whole. One that does not is cut between completions, and
    each part brings the prompt again. A single completion that does not fit goes alone. Sums over
    the micro-batches do not depend on the cut, nor does the gradient of a loss that is such a sum
    (divide by the token count of the *batch*).

    Args:
        groups: B sequences in all.
        budget: Largest cost of a micro-batch, in language-model tokens.
        vision_token_cost: Cost of a vision token in the tower, in language-model tokens: 1.0 for
            Qwen2.5-VL-3B, 0.42 for 7B, 0 where the features of a frozen tower are kept.
        keep: ``[B]`` bool, the sequences that count; others (zero advantage, say) are left out,
            and with all of its completions a prompt and its images.
        whole: Never cut a group; one that does not fit goes alone.

    Returns:
        The most expensive first, so that too large a budget fails at once. Together they hold
        every kept sequence once.

    Raises:
        ValueError: The budget is not positive.
    """
    if budget <= 0:
        raise ValueError(f"the token budget of a micro-batch must be positive, not {budget}")
    pieces: list[_Piece] = []
    start = 0
    for group in groups:
        rows = range(start, start + len(group.completions))
        start = rows.stop
        pieces += _split(_kept(group, rows, keep), math.inf if whole else budget, vision_token_cost)
    bins = _first_fit(pieces, budget, vision_token_cost)
    return [_micro_batch(one.pieces) for one in sorted(bins, key=lambda b: -b.cost)]


def balanced(costs: Sequence[float], shares: int) -> list[list[int]]:
    """Indices of ``costs`` in ``shares`` lists of about equal sums, each in ascending order.

    The most expensive first, each to the share that has least (at most 4/3 of the best possible).

    >>> balanced([5, 4, 3, 3, 3], 2)
    [[0, 3], [1, 2, 4]]
    """
    sums = [0.0] * shares
    found: list[list[int]] = [[] for _ in range(shares)]
    for index in sorted(range(len(costs)), key=lambda i: -costs[i]):
        least = sums.index(min(sums))
        sums[least] += costs[index]
        found[least].append(index)
    return [sorted(share) for share in found]


def _kept(group: GroupInput, rows: range, keep: torch.Tensor | None) -> _Piece:
    chosen = tuple(row for row in rows if keep is None or keep[row])
    completions = tuple(group.completions[row - rows.start] for row in chosen)
    return _Piece(replace(group, completions=completions), chosen)


def _split(piece: _Piece, budget: float, vision_token_cost: float) -> list[_Piece]:
    """Parts within the budget, by first fit of the longest completions first."""
    if not piece.rows:
        return []
    if _Bin().added_cost(piece, vision_token_cost) <= budget:
        return [piece]
    empty = replace(piece.group, completions=())
    fixed = _Bin().added_cost(_Piece(empty, ()), vision_token_cost)
    lengths = [len(row) for row in piece.group.completions]
    room = max(budget - fixed, max(lengths))
    parts: list[list[int]] = []
    for i in sorted(range(len(lengths)), key=lambda i: -lengths[i]):
        for part in parts:
            if sum(lengths[j] for j in part) + lengths[i] <= room:
                part.append(i)
                break
        else:
            parts.append([i])
    return [_part(piece, sorted(part)) for part in parts]


def _part(piece: _Piece, indices: Sequence[int]) -> _Piece:
    completions = tuple(piece.group.completions[i] for i in indices)
    group = replace(piece.group, completions=completions)
    return _Piece(group, tuple(piece.rows[i] for i in indices))


def _first_fit(pieces: Sequence[_Piece], budget: float, vision_token_cost: float) -> list[_Bin]:
    bins: list[_Bin] = []
    for piece in sorted(pieces, key=lambda p: -p.tokens):
        for one in bins:
            if one.cost + one.added_cost(piece, vision_token_cost) <= budget:
                one.add(piece, vision_token_cost)
                break
        else:
            bins.append(_Bin())
            bins[-1].add(piece, vision_token_cost)
    return bins


def _micro_batch(pieces: Sequence[_Piece]) -> MicroBatch:
    ordered = sorted(pieces, key=lambda p: p.rows)
    rows = torch.tensor([row for piece in ordered for row in piece.rows])
    return MicroBatch(tuple(piece.group for piece in ordered), rows)
