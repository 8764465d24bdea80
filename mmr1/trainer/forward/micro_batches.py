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
        groups: Whole groups, or groups with some of their completions. Empty where other ranks have
            work left and this one has none.
        rows: ``[b]`` int64: which sequences of the batch these are, so that
            ``advantages[rows]`` and the like go with them.
        run_tower: A rank has media in this forward, so a sharded vision tower runs on all.
        after: The groups of the micro-batch after this one, whose media are prepared meanwhile.
    """

    groups: tuple[GroupInput, ...]
    rows: torch.Tensor
    run_tower: bool = False
    after: tuple[GroupInput, ...] = ()


@dataclass(frozen=True)
class _GroupSlice:
    """A group with some of its completions, or all, and their rows in the batch.

    Completions share their prompt, or are padded to the longest with a prompt each.
    """

    group: GroupInput
    rows: tuple[int, ...]
    shares_prompt: bool

    @property
    def tokens(self) -> int:
        prompt, lengths = len(self.group.prompt_ids), [len(row) for row in self.group.completions]
        if self.shares_prompt:
            return prompt + sum(lengths)
        return len(lengths) * (prompt + max(lengths, default=0))

    @property
    def vision_tokens(self) -> dict[str, int]:
        """By the digest of what goes through the tower once."""
        if self.shares_prompt and not self.group.arguments:
            return {m.digest: m.tokens for m in self.group.all_media}
        if self.shares_prompt:  # the model's own forward sees each prompt's
            return {f"{self.rows[0]} {m.digest}": m.tokens for m in self.group.all_media}
        return {f"{row} {m.digest}": m.tokens for row in self.rows for m in self.group.media}


@dataclass
class _Bin:
    """A micro-batch that is being filled."""

    slices: list[_GroupSlice] = field(default_factory=list)
    digests: set[str] = field(default_factory=set)
    cost: float = 0.0

    def added_cost(self, group_slice: _GroupSlice, vision_token_cost: float) -> float:
        """A medium that another prompt in the bin has already costs nothing more."""
        media = group_slice.vision_tokens.items()
        new = [tokens for digest, tokens in media if digest not in self.digests]
        return group_slice.tokens + vision_token_cost * sum(new)

    def add(self, group_slice: _GroupSlice, vision_token_cost: float) -> None:
        self.cost += self.added_cost(group_slice, vision_token_cost)
        self.slices.append(group_slice)
        self.digests.update(group_slice.vision_tokens)


def micro_batches(
    groups: Sequence[GroupInput],
    budget: float,
    vision_token_cost: float = 1.0,
    keep: torch.Tensor | None = None,
    whole: bool = False,
    shares_prompts: bool = True,
) -> list[MicroBatch]:
    """Cut a batch by cost: its tokens, a shared prompt's once, and its vision tokens once more.

    A group that fits the budget stays whole. One that does not is cut between completions, and
    each part brings the prompt again. A single completion that does not fit has a micro-batch to
    itself. Sums over the micro-batches do not depend on the cut, nor does the gradient of a loss
    that is such a sum (divide by the token count of the *batch*).

    Args:
        groups: B sequences in all.
        budget: Largest cost of a micro-batch, in language-model tokens.
        vision_token_cost: Cost of a vision token in the tower, in language-model tokens: by FLOPs
            0.91 for Qwen2.5-VL-3B and 0.39 for 7B; 0 where features of a frozen tower are kept.
        keep: ``[B]`` bool, the sequences that count; others (zero advantage, say) are left out,
            and with all of its completions a prompt and its images.
        whole: Never cut a group; one that does not fit has a micro-batch to itself.
        shares_prompts: Completions share their prompt; else each costs its own and their padding,
            and groups are not put together: each would be a forward of its own all the same, and
            ranks must run equally many.

    Returns:
        The most expensive first, so that too large a budget fails at once. Together they hold
        every kept sequence once.

    Raises:
        ValueError: The budget is not positive.
    """
    if budget <= 0:
        raise ValueError(f"the token budget of a micro-batch must be positive, not {budget}")
    slices: list[_GroupSlice] = []
    start = 0
    for group in groups:
        rows = range(start, start + len(group.completions))
        start = rows.stop
        kept = _kept_slice(group, rows, keep, shares_prompts)
        slices += _split(kept, math.inf if whole else budget, vision_token_cost)
    bins = [_Bin([part], cost=part.tokens) for part in slices]
    if shares_prompts:
        bins = _first_fit_decreasing(slices, budget, vision_token_cost)
    return [_micro_batch(b.slices) for b in sorted(bins, key=lambda b: -b.cost)]


def balanced(costs: Sequence[float], shares: int) -> list[list[int]]:
    """Indices of ``costs`` in ``shares`` lists of about equal sums, each in ascending order.

    The most expensive first, each to the share that has least (at most 4/3 of the best possible).

    >>> balanced([5, 4, 3, 3, 3], 2)
    [[0, 3], [1, 2, 4]]
    """
    sums = [0.0] * shares
    indices: list[list[int]] = [[] for _ in range(shares)]
    for index in sorted(range(len(costs)), key=lambda i: -costs[i]):
        least = sums.index(min(sums))
        sums[least] += costs[index]
        indices[least].append(index)
    return [sorted(share) for share in indices]


def _kept_slice(
    group: GroupInput, rows: range, keep: torch.Tensor | None, shares_prompt: bool
) -> _GroupSlice:
    kept = [i for i, row in enumerate(rows) if keep is None or keep[row]]
    return _select(_GroupSlice(group, tuple(rows), shares_prompt), kept)


def _select(group_slice: _GroupSlice, indices: Sequence[int]) -> _GroupSlice:
    """The slice with those of its completions."""
    rows = tuple(group_slice.rows[i] for i in indices)
    return replace(group_slice, group=group_slice.group.select(indices), rows=rows)


def _split(group_slice: _GroupSlice, budget: float, vision_token_cost: float) -> list[_GroupSlice]:
    """Slices within the budget, by first fit of the longest completions first."""
    if not group_slice.rows:
        return []
    if _Bin().added_cost(group_slice, vision_token_cost) <= budget:
        return [group_slice]

    def cost(indices: Sequence[int]) -> float:
        return _Bin().added_cost(_select(group_slice, indices), vision_token_cost)

    singles = [cost([i]) for i in range(len(group_slice.rows))]
    limit = max(budget, *singles)
    parts: list[list[int]] = []
    for i in sorted(range(len(singles)), key=lambda i: -singles[i]):
        for part in parts:
            if cost([*part, i]) <= limit:
                part.append(i)
                break
        else:
            parts.append([i])
    return [_select(group_slice, sorted(part)) for part in parts]


def _first_fit_decreasing(
    slices: Sequence[_GroupSlice], budget: float, vision_token_cost: float
) -> list[_Bin]:
    bins: list[_Bin] = []
    for group_slice in sorted(slices, key=lambda s: -s.tokens):
        for bin_ in bins:
            if bin_.slices[0].group.kind != group_slice.group.kind:
                continue
            if bin_.cost + bin_.added_cost(group_slice, vision_token_cost) <= budget:
                bin_.add(group_slice, vision_token_cost)
                break
        else:
            bins.append(_Bin())
            bins[-1].add(group_slice, vision_token_cost)
    return bins


def _micro_batch(slices: Sequence[_GroupSlice]) -> MicroBatch:
    ordered = sorted(slices, key=lambda s: s.rows)
    rows = torch.tensor([row for group_slice in ordered for row in group_slice.rows])
    return MicroBatch(tuple(group_slice.group for group_slice in ordered), rows)
