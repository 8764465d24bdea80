"""Calls to all ranks at once, from the process that runs the loop.

What is called is a method of a part of what the ranks have built, passed as a function:
``ranks.part(lambda models: models.critic).each(LocalCritic.learn, parts)``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any, Concatenate, Generic, ParamSpec, TypeVar

import torch

from mmr1.trainer.distributed.colocation import Colocation
from mmr1.trainer.distributed.engine_actor import Engine
from mmr1.trainer.distributed.errors import HungError, TransferError
from mmr1.trainer.distributed.rank_actor import SAVING, SENDING, WATCHING, PartMethod, Rank
from mmr1.trainer.distributed.ray_calls import Actor, Call, Watch, get, outcomes
from mmr1.trainer.forward.micro_batches import balanced
from mmr1.trainer.forward.sequences import completion_mask
from mmr1.trainer.models.policy import SentWeights
from mmr1.trainer.models.state import Digests, WriteCheckpoint
from mmr1.types import Completion, Prompt, RolloutGroup

Built = TypeVar("Built")
Part = TypeVar("Part")
Other = TypeVar("Other")
Item = TypeVar("Item")
Result = TypeVar("Result")
Arguments = ParamSpec("Arguments")
Weights = Mapping[str, torch.Tensor]

PromptCost = Callable[[Prompt], float]
"""The cost of a prompt in tokens of the language model, its media included.

Of the pictures that tools have shown since (``observed``) only the vision tower's work counts: the
completions have their tokens.
"""


def cost_of_group(
    prompt_cost: PromptCost, prompt: Prompt, completions: Iterable[Completion]
) -> float:
    """The cost of a prompt and its completions; a picture that several received counts once."""
    completions = list(completions)
    asked = {medium.digest() for medium in prompt.media}
    shown = {m.digest(): m for c in completions for m in c.media if m.digest() not in asked}
    tokens = sum(len(c.token_ids) for c in completions)
    return prompt_cost(replace(prompt, observed=tuple(shown.values()))) + tokens


def cut_rows(completions: int, pieces: int) -> list[slice]:
    """Cut the completions of a group into at most so many pieces of about equal numbers."""
    pieces = max(1, min(completions, pieces))
    ends = [completions * i // pieces for i in range(pieces + 1)]
    return [slice(*pair) for pair in pairwise(ends)]


def cut_groups(groups: Sequence[RolloutGroup], shares: int) -> list[RolloutGroup]:
    """Cut groups where there are fewer than shares, which would leave some idle.

    The rows stay in order. Each piece computes its prompt again, at the same time as the others.
    """
    pieces = -(-shares // max(1, len(groups)))
    return [
        replace(group, completions=group.completions[rows])
        for group in groups
        for rows in cut_rows(len(group.completions), pieces)
    ]


class AllRanks(Generic[Built]):
    """The ranks of a run, as actors of ``Rank``.

    Args:
        transfers: Weights reach engines over GPUs. Otherwise Ray's object store brings them.
        prompt_cost: Costs by which work is divided into equal shares.
        context: So many neighbouring ranks share each sequence, and so have the same work.
        transfer_s: Longest time to wait until weights are sent; see ``transfer_seconds``.
        collective_s: ``resources.collective_timeout_s``.

    Attributes:
        colocation: Where engines share the ranks' GPUs: they leave them before the ranks compute.
    """

    def __init__(
        self,
        ranks: Sequence[Actor[Rank]],
        transfers: bool,
        prompt_cost: PromptCost,
        context: int,
        transfer_s: float,
        collective_s: float,
    ) -> None:
        self.transfers = transfers
        self.actors = ranks
        self._collective_s = collective_s
        self.transfer_s = transfer_s
        self.context = context
        self._copies = 0
        self.colocation: Colocation | None = None
        self.prompt_cost = prompt_cost

    def __len__(self) -> int:
        """The number of shares that work is divided into."""
        return len(self.actors) // self.context

    def part(self, find: Callable[[Built], Part | None]) -> OnRanks[Part]:
        """A part of what the ranks have built, such as ``lambda models: models.policy``."""
        return OnRanks(self, find)

    def cost(self, group: RolloutGroup) -> float:
        """The cost of a prompt and its completions, in tokens."""
        return cost_of_group(self.prompt_cost, group.prompt, group.completions)

    def shares(self, groups: Sequence[RolloutGroup]) -> list[list[int]]:
        """Indices of each share's groups, about equal in cost."""
        return balanced([self.cost(group) for group in groups], len(self))

    def next_copy(self) -> int:
        """A number that no copy of weights has."""
        self._copies += 1
        return self._copies

    def make_room(self, sent: bool) -> None:
        """``Rank.make_room`` on all ranks."""
        self.get([rank.start(Rank.make_room, sent) for rank in self.actors])

    def take_back(self) -> None:
        """``Rank.take_back`` on all ranks."""
        self.get([rank.start(Rank.take_back) for rank in self.actors])

    def begin_trace(self) -> None:
        """See ``profiling.Traceable``."""
        self.get([rank.start(Rank.begin_trace) for rank in self.actors])

    def end_trace(self, file: Path) -> None:
        """See ``profiling.Traceable``."""
        self.get([rank.start(Rank.end_trace, file.resolve()) for rank in self.actors])

    def begin(self) -> None:
        """Announce that the ranks will compute: engines on their GPUs leave these to them."""
        if self.colocation is not None:
            self.colocation.learn()

    def get(self, calls: Sequence[Call[Result]]) -> list[Result]:
        """The results of calls to the ranks, the i-th to rank i.

        Raises:
            HungError: A rank is stuck where no collective call of another one waits for it.
        """
        return get(calls, watch=Watch(self._collective_s / 4, self._refuse_stuck))

    def write(
        self, snapshot: PartMethod, copied: bool, args: tuple[Any, ...], folder: Path
    ) -> Digests:
        """Make the ranks write a snapshot: the copy that they have taken, or the present state."""
        place = folder.resolve()
        if copied:
            saving = [rank.within(SAVING) for rank in self.actors]
            written = get([rank.start(Rank.write, snapshot, place) for rank in saving])
        else:
            self.begin()
            calls = [rank.start(Rank.save, snapshot, place, *args) for rank in self.actors]
            written = self.get(calls)
        return {name: digest for files in written for name, digest in files.items()}

    def _refuse_stuck(self, pending: Sequence[int]) -> None:
        signs = {i: self.actors[i].within(WATCHING).start(Rank.silent_s) for i in pending}
        silent, no_sign = outcomes(signs, self._collective_s)
        # By then the collective calls of the others have given up, and said so.
        late = {i: f"{s:.0f} s" for i, s in silent.items() if s > 1.25 * self._collective_s}
        for rank, silence in (no_sign | late).items():
            raise HungError(
                f"rank {rank} is stuck ({silence}), longer than resources.collective_timeout_s="
                f"{self._collective_s:g}. --resume continues from the last checkpoint"
            )


@dataclass(frozen=True, slots=True)
class OnRanks(Generic[Part]):
    """A part of what the ranks have built, on all of them.

    Attributes:
        find: Finds the part in what a rank has built. It is pickled.
    """

    ranks: AllRanks[Any]
    find: Callable[[Any], Part | None]

    def part(self, find: Callable[[Part], Other | None]) -> OnRanks[Other]:
        """A part of this part."""
        outer: Callable[[Any], Any] = self.find
        return OnRanks(self.ranks, lambda built: find(outer(built)))

    def call(
        self,
        method: Callable[Concatenate[Part, Arguments], Result],
        *args: Arguments.args,
        **options: Arguments.kwargs,
    ) -> Result:
        """Call a method on all ranks with the same arguments; returns rank 0's result."""
        assert not options, "ranks are called by position"
        self.ranks.begin()
        own = PartMethod(self.find, method)
        calls = [rank.start(Rank.call, own, *args) for rank in self.ranks.actors]
        result: Result = self.ranks.get(calls)[0]
        return result

    def ask(self, method: Callable[[Part], Result]) -> Result:
        """Call a method on rank 0 alone."""
        own = PartMethod(self.find, method)
        result: Result = self.ranks.get([self.ranks.actors[0].start(Rank.ask, own)])[0]
        return result

    def each(
        self,
        method: Callable[Concatenate[Part, Item, Arguments], Result],
        items: Sequence[Item],
        *args: Arguments.args,
        **options: Arguments.kwargs,
    ) -> list[Result]:
        """Call a method with the item of each share; returns the result of each.

        Args:
            args: Further arguments, the same for all.
        """
        assert not options, "ranks are called by position"
        import ray

        self.ranks.begin()
        own, context = PartMethod(self.find, method), self.ranks.context
        # Pickled once for all ranks of a share.
        put: Sequence[Any] = [ray.put(item) for item in items] if context > 1 else items
        of_ranks = (item for item in put for _ in range(context))
        pairs = zip(self.ranks.actors, of_ranks, strict=True)
        calls = [rank.start(Rank.call, own, item, *args) for rank, item in pairs]
        results: list[Result] = self.ranks.get(calls)
        return results[::context]

    def by_group(
        self,
        method: Callable[[Part, Sequence[RolloutGroup]], Result],
        groups: Sequence[RolloutGroup],
    ) -> list[Result]:
        """Call a method with each share of the groups; returns the result of each."""
        shares = self.ranks.shares(groups)
        return self.each(method, [[groups[i] for i in share] for share in shares])

    def by_token(
        self,
        method: Callable[[Part, Sequence[RolloutGroup]], torch.Tensor],
        groups: Sequence[RolloutGroup],
    ) -> torch.Tensor:
        """``[B, R]``: the ranks compute the numbers of their shares of the groups."""
        pieces = cut_groups(groups, len(self.ranks))
        return self.in_order(pieces, self.by_group(method, pieces))

    def in_order(
        self, groups: Sequence[RolloutGroup], results: Sequence[torch.Tensor]
    ) -> torch.Tensor:
        """The ``[b, r]`` numbers that ``by_group`` gave as those of all groups: ``[B, R]``."""
        rows_of = [range(0)] * len(groups)
        end = 0
        for i, group in enumerate(groups):
            rows_of[i] = range(end, end := end + len(group.completions))
        numbers = torch.zeros(completion_mask(groups).shape)
        for share, result in zip(self.ranks.shares(groups), results, strict=True):
            rows = [row for i in share for row in rows_of[i]]
            numbers[rows, : result.shape[1]] = result
        return numbers

    def weights(self, method: Callable[[Part], Weights], copy: bool = False) -> SentWeights:
        """The weights that a method gives, to be sent to engines.

        Args:
            copy: Whether the weights are those of now, also when the ranks have learnt more.
        """
        own, ranks = PartMethod(self.find, method), self.ranks
        if not ranks.transfers:
            return self._stored(own)
        # Colocated engines sample nothing while the ranks learn: they need no copy.
        if not copy or ranks.colocation is not None:
            return LiveWeights(ranks.actors, own, ranks.transfer_s)
        key = ranks.next_copy()
        ranks.get([rank.start(Rank.keep, own, key) for rank in ranks.actors])
        return KeptWeights(ranks.actors[0], key, ranks.transfer_s)

    def _stored(self, method: PartMethod) -> StoredWeights:
        self.ranks.begin()
        calls = [rank.start(Rank.share, method) for rank in self.ranks.actors]
        (stored,) = self.ranks.get(calls)[0]
        return StoredWeights(stored, self.ranks.transfer_s)

    def gather(self, method: Callable[[Part], Weights]) -> Weights:
        """The weights that a method gives, in this process."""
        self.ranks.begin()
        own = PartMethod(self.find, method)
        weights = self.ranks.get([rank.start(Rank.gather, own) for rank in self.ranks.actors])[0]
        assert weights is not None, "rank 0 gives them"
        return weights

    def load_weights(self, method: Callable[[Part, Weights], object], weights: Weights) -> None:
        """Give a method whole weights, of which each rank takes its shards."""
        import ray

        self.ranks.begin()
        own, shared = PartMethod(self.find, method), ray.put(dict(weights))
        self.ranks.get([rank.start(Rank.call, own, shared) for rank in self.ranks.actors])

    def snapshot(
        self,
        method: Callable[Concatenate[Part, bool, Arguments], WriteCheckpoint],
        copy: bool,
        *args: Arguments.args,
        **options: Arguments.kwargs,
    ) -> WriteCheckpoint:
        """Make the ranks write the snapshot that a method takes.

        Args:
            copy: Write a copy of the present state, while training continues. Otherwise write the
                state at the time of writing.
            args: Further arguments of the method.
        """
        assert not options, "ranks are called by position"
        own, ranks = PartMethod(self.find, method), self.ranks
        ranks.begin()
        if copy:
            ranks.get([rank.start(Rank.take, own, *args) for rank in ranks.actors])
        return partial(ranks.write, own, copy, args)


@dataclass(frozen=True, slots=True)
class LiveWeights:
    """The weights that a method of the ranks gives when they are sent; no copy is made.

    Attributes:
        timeout_s: Longest time that a rank may take.
    """

    ranks: Sequence[Actor[Rank]]
    method: PartMethod
    timeout_s: float

    def send(self, engines: Sequence[Actor[Engine]], version: int) -> None:
        calls = [rank.start(Rank.send, self.method, list(engines), version) for rank in self.ranks]
        get(calls, self.timeout_s)

    def release(self) -> None:
        """Do nothing: no copy was made."""


@dataclass(frozen=True, slots=True)
class KeptWeights:
    """A copy in the main memory of rank 0, which is sent while the ranks learn.

    Attributes:
        timeout_s: Longest time that rank 0 may take.
    """

    first_rank: Actor[Rank]
    key: int
    timeout_s: float

    def send(self, engines: Sequence[Actor[Engine]], version: int) -> None:
        rank = self.first_rank.within(SENDING)
        get([rank.start(Rank.send_kept, self.key, list(engines), version)], self.timeout_s)

    def release(self) -> None:
        rank = self.first_rank.within(SENDING)
        get([rank.start(Rank.release, self.key)], self.timeout_s)


@dataclass(frozen=True, slots=True)
class StoredWeights:
    """A copy in Ray's object store, which stays as it is when the ranks learn more.

    Attributes:
        stored: Refers to those of rank 0, on its machine.
        timeout_s: Longest time that an engine may take.
    """

    stored: Any
    timeout_s: float

    def send(self, engines: Sequence[Actor[Engine]], version: int) -> None:
        calls = {
            i: engine.start(Engine.load, self.stored, version) for i, engine in enumerate(engines)
        }
        _, lost = outcomes(calls, self.timeout_s)
        for i, why in lost.items():
            raise TransferError(
                f"the weights did not reach all engines: rollout engine {i} was lost ({why})"
            )

    def release(self) -> None:
        """Do nothing: Ray frees them when nothing refers to them."""
