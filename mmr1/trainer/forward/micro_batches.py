"""A batch of groups cut into forwards that each cost at most a budget, on one process or many.

A sharded model is gathered layer by layer as it runs, so every rank must run the same layers the
same number of times. ``ProcessGroup`` gives the ranks equally many micro-batches, and adds up what
they logged.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch

from mmr1.trainer.forward.context import Context
from mmr1.trainer.forward.sequences import GroupInput
from mmr1.types import Metric, ScoredGroup


@dataclass(frozen=True)
class MicroBatch:
    """The sequences of one forward and backward.

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


@dataclass(frozen=True, slots=True)
class _GroupSlice:
    """A group with some of its completions, or all.

    Attributes:
        rows: Their rows in the batch.
        tokens: The prompt's and theirs; or, where each has a prompt to itself, their padding too.
        vision_tokens: Vision tokens of all that goes through the tower once, by digest.
        cost: Cost of both kinds of tokens.
    """

    group: GroupInput
    rows: tuple[int, ...]
    tokens: int
    vision_tokens: dict[str, int]
    cost: float


@dataclass
class _Bin:
    """A micro-batch that is being filled."""

    slices: list[_GroupSlice] = field(default_factory=list)
    digests: set[str] = field(default_factory=set)
    cost: float = 0.0


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
        kept = [row for row in rows if keep is None or keep[row]]
        if not kept:
            continue
        part = _slice(group, rows.start, kept, shares_prompts, vision_token_cost)
        if whole or part.cost <= budget:
            slices.append(part)
        else:
            slices += _split(group, rows.start, kept, shares_prompts, budget, vision_token_cost)
    bins = [_Bin([part], cost=part.tokens) for part in slices]
    if shares_prompts:
        bins = _first_fit_decreasing(slices, budget, vision_token_cost)
    batches = []
    for bin_ in sorted(bins, key=lambda b: -b.cost):
        ordered = sorted(bin_.slices, key=lambda s: s.rows)
        in_batch = torch.tensor([row for part in ordered for row in part.rows])
        batches.append(MicroBatch(tuple(part.group for part in ordered), in_batch))
    return batches


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


def _slice(
    group: GroupInput,
    start: int,
    rows: Sequence[int],
    shares_prompt: bool,
    vision_token_cost: float,
) -> _GroupSlice:
    """Some rows of a group whose first is ``start``."""
    part = group
    if len(rows) < len(group.completions):
        part = group.select([row - start for row in rows])
    prompt, lengths = len(part.prompt_ids), [len(row) for row in part.completions]
    if shares_prompt:
        tokens = prompt + sum(lengths)
        # A model's own forward takes the media of each prompt, whatever others show.
        of = f"{rows[0]} " if part.arguments else ""
        vision_tokens = {f"{of}{m.digest}": m.tokens for m in part.all_media}
    else:
        tokens = len(lengths) * (prompt + max(lengths))
        vision_tokens = {f"{row} {m.digest}": m.tokens for row in rows for m in part.media}
    cost = tokens + vision_token_cost * sum(vision_tokens.values())
    return _GroupSlice(part, tuple(rows), tokens, vision_tokens, cost)


def _split(
    group: GroupInput,
    start: int,
    kept: Sequence[int],
    shares_prompt: bool,
    budget: float,
    vision_token_cost: float,
) -> list[_GroupSlice]:
    """The kept rows of a group in slices within the budget, the longest completions placed first.

    A single row may be beyond it.
    """
    costs = (shares_prompt, vision_token_cost)
    singles = {row: _slice(group, start, [row], *costs).cost for row in kept}
    limit = max(budget, *singles.values())
    parts: list[list[int]] = []
    for row in sorted(kept, key=lambda row: -singles[row]):
        for part in parts:
            if _slice(group, start, [*part, row], *costs).cost <= limit:
                part.append(row)
                break
        else:
            parts.append([row])
    return [_slice(group, start, sorted(part), *costs) for part in parts]


def _first_fit_decreasing(
    slices: Sequence[_GroupSlice], budget: float, vision_token_cost: float
) -> list[_Bin]:
    bins: list[_Bin] = []
    for part in sorted(slices, key=lambda s: -s.tokens):
        for bin_ in bins:
            if bin_.slices[0].group.kind != part.group.kind:
                continue
            # A medium that another prompt in the bin has already costs nothing more.
            media = part.vision_tokens.items()
            new = sum(tokens for digest, tokens in media if digest not in bin_.digests)
            cost = part.tokens + vision_token_cost * new
            if bin_.cost + cost <= budget:
                break
        else:
            bins.append(bin_ := _Bin())
            cost = part.cost
        bin_.cost += cost
        bin_.slices.append(part)
        bin_.digests.update(part.vision_tokens)
    return bins


class ProcessGroup(Protocol):
    """The processes that compute an update together.

    Attributes:
        saving: The group of ``torch.distributed`` that writes checkpoints, beside a step too; None
            for a single process.
        context: The ranks that share this one's sequences; None where it has whole ones.
    """

    rank: int
    size: int
    saving: Any
    context: Context | None

    def run(self, compute: Callable[..., Any], model: Any, *args: Any, **options: Any) -> Any:
        """``compute(model, *args, **options)``, which gives a tensor or a tuple of tensors.

        Of a sharded model the parameters that belong to no layer are gathered first.
        """
        ...

    def lockstep_batches(self, batches: Sequence[MicroBatch]) -> list[MicroBatch]:
        """This rank's micro-batches, as many as those of the rank with most.

        Empty ones are added at the end, and ``run_tower`` is set where any rank has media.
        """
        ...

    def merge(self, metrics: Mapping[str, Metric]) -> dict[str, Metric]:
        """Metrics merged over the ranks. Ranks that share sequences have the same ones, which count
        once. A rank may lack some names.
        """
        ...

    def total(self, sums: Mapping[str, float]) -> dict[str, float]:
        """Each number summed over the ranks, as ``merge`` does."""
        ...


class SingleProcess:
    """A process without others."""

    rank, size, saving = 0, 1, None
    context: Context | None = None

    def run(self, compute: Callable[..., Any], model: Any, *args: Any, **options: Any) -> Any:
        return compute(model, *args, **options)

    def lockstep_batches(self, batches: Sequence[MicroBatch]) -> list[MicroBatch]:
        return list(batches)

    def merge(self, metrics: Mapping[str, Metric]) -> dict[str, Metric]:
        return dict(metrics)

    def total(self, sums: Mapping[str, float]) -> dict[str, float]:
        return dict(sums)


def mini_batch_rows(groups: Sequence[ScoredGroup], size: int | None) -> list[torch.Tensor]:
    """``[B]`` bool for each mini-batch of ``size`` groups, or for one of all: its sequences.

    The last may have fewer groups.
    """
    size = size or len(groups)
    of_row = torch.tensor([n // size for n, scored in enumerate(groups) for _ in scored.rewards])
    return [of_row == index for index in range(-(-len(groups) // size))]
