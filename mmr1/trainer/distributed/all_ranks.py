"""What the ranks have built, called on all of them at once, from the process that runs the loop."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from mmr1.trainer.distributed.colocation import Colocation
from mmr1.trainer.distributed.errors import HungError
from mmr1.trainer.distributed.rank_actor import SAVING, WATCHING
from mmr1.trainer.distributed.rank_weights import (
    AdapterWeights,
    KeptWeights,
    LiveWeights,
    RankWeights,
)
from mmr1.trainer.distributed.ray_calls import Watch, get, outcomes
from mmr1.trainer.forward.micro_batches import balanced
from mmr1.trainer.forward.sequences import completion_mask
from mmr1.trainer.models.digests import Digests
from mmr1.trainer.models.state import WriteCheckpoint
from mmr1.types import Completion, Prompt, RolloutGroup

PromptCost = Callable[[Prompt], float]
"""Cost of a prompt in tokens of the language model, its media included. Of what tools have shown
since (``observed``) only what the vision tower costs: the completions have its tokens."""


def cost_of_group(
    prompt_cost: PromptCost, prompt: Prompt, completions: Iterable[Completion]
) -> float:
    """Of a prompt and its completions; a picture that several received is encoded once."""
    completions = list(completions)
    asked = {medium.digest() for medium in prompt.media}
    shown = {m.digest(): m for c in completions for m in c.media if m.digest() not in asked}
    tokens = sum(len(c.token_ids) for c in completions)
    return prompt_cost(replace(prompt, observed=tuple(shown.values()))) + tokens


class AllRanks:
    """The ranks of a run, as actors of ``Rank``; methods are named as there.

    Args:
        prompt_cost: By which work is divided into equal shares.
        context: So many neighbouring ranks share each sequence, and so have the same work.
        transfer_s: Longest time to wait until weights are sent; see ``transfer_seconds``.
        collective_s: ``resources.collective_timeout_s``.

    Attributes:
        colocation: Where engines share the ranks' GPUs: they leave them before the ranks compute.
    """

    def __init__(
        self,
        ranks: Sequence[Any],
        prompt_cost: PromptCost,
        context: int,
        transfer_s: float,
        collective_s: float,
    ) -> None:
        self._ranks = ranks
        self._collective_s = collective_s
        self._transfer_s = transfer_s
        self._context = context
        self._copies = 0
        self.colocation: Colocation | None = None
        self.prompt_cost = prompt_cost

    def __len__(self) -> int:
        """The number of shares that work is divided into."""
        return len(self._ranks) // self._context

    def call(self, method: str, *args: Any) -> Any:
        """Call a method on all with the same arguments; what rank 0 returns."""
        self._begin()
        return self._get([rank.call.remote(method, *args) for rank in self._ranks])[0]

    def call_each(self, method: str, own: Sequence[tuple[Any, ...]]) -> list[Any]:
        """Call a method with the arguments of each share; what it returns for them."""
        import ray

        self._begin()
        # Pickled once for all ranks of a share.
        put = [tuple(map(ray.put, args)) for args in own] if self._context > 1 else own
        calls = zip(self._ranks, (args for args in put for _ in range(self._context)), strict=True)
        return self._get([rank.call.remote(method, *args) for rank, args in calls])[
            :: self._context
        ]

    def ask(self, method: str) -> Any:
        """What rank 0 answers without the others."""
        return self._get([self._ranks[0].ask.remote(method)])[0]

    def weights(self, owner: str, copy: bool = False) -> RankWeights:
        """The weights of what has ``engine_weights``, to be sent to engines.

        Args:
            owner: Its name, with a dot behind it; empty for what was built itself.
            copy: Those of now, also when the ranks have learnt more.
        """
        method = f"{owner}engine_weights"
        # Colocated engines sample nothing while the ranks learn: they need no copy.
        if not copy or self.colocation is not None:
            return LiveWeights(self._ranks, method, self._transfer_s)
        self._copies += 1
        self._get([rank.keep.remote(method, self._copies) for rank in self._ranks])
        return KeptWeights(self._ranks[0], self._copies, self._transfer_s)

    def adapters(self, method: str) -> AdapterWeights:
        """The adapters that the method gives; they stay as they are when the ranks learn more."""
        self._begin()
        (stored,) = self._get([rank.share.remote(method) for rank in self._ranks])[0]
        return AdapterWeights(stored, self._transfer_s)

    def gather(self, method: str) -> Mapping[str, torch.Tensor]:
        """The weights that a method gives, in this process."""
        self._begin()
        return self._get([rank.gather.remote(method) for rank in self._ranks])[0]

    def load_weights(self, method: str, weights: Mapping[str, torch.Tensor]) -> None:
        """Give a method whole weights, of which each rank takes its shards."""
        import ray

        self._begin()
        shared = ray.put(dict(weights))
        self._get([rank.call.remote(method, shared) for rank in self._ranks])

    def snapshot(self, method: str, copy: bool, *args: Any) -> WriteCheckpoint:
        """What makes the ranks write the snapshot that a method takes.

        Args:
            copy: Of what is now, and while training goes on; else of what is when it is called.
            args: Further ones of the method.
        """
        self._begin()
        if copy:
            self._get([rank.take.remote(method, *args) for rank in self._ranks])

        def write_files(folder: Path) -> Digests:
            place = folder.resolve()
            if copy:
                calls = [rank.write.options(concurrency_group=SAVING) for rank in self._ranks]
                written = get([call.remote(method, place) for call in calls])
            else:
                self._begin()
                written = self._get(
                    [rank.save.remote(method, place, *args) for rank in self._ranks]
                )
            return {name: digest for files in written for name, digest in files.items()}

        return write_files

    def cost(self, group: RolloutGroup) -> float:
        """Of the prompt and its completions, in tokens."""
        return cost_of_group(self.prompt_cost, group.prompt, group.completions)

    def by_token(self, method: str, groups: Sequence[RolloutGroup]) -> torch.Tensor:
        """``[B, R]``: the ranks compute the numbers of their shares of the groups."""
        return self.in_order(groups, self.call_by_group(method, groups))

    def call_by_group(self, method: str, groups: Sequence[RolloutGroup]) -> list[Any]:
        """Call a method with each share of the groups; what it returns for them."""
        shares = self._shares(groups)
        return self.call_each(method, [([groups[i] for i in share],) for share in shares])

    def in_order(
        self, groups: Sequence[RolloutGroup], results: Sequence[torch.Tensor]
    ) -> torch.Tensor:
        """The ``[b, r]`` numbers that ``call_by_group`` gave as those of all groups: ``[B, R]``."""
        rows_of = [range(0)] * len(groups)
        end = 0
        for i, group in enumerate(groups):
            rows_of[i] = range(end, end := end + len(group.completions))
        numbers = torch.zeros(completion_mask(groups).shape)
        for share, result in zip(self._shares(groups), results, strict=True):
            rows = [row for i in share for row in rows_of[i]]
            numbers[rows, : result.shape[1]] = result
        return numbers

    def make_room(self, sent: bool) -> None:
        """``Rank.make_room``."""
        self._get([rank.make_room.remote(sent) for rank in self._ranks])

    def take_back(self) -> None:
        """``Rank.take_back``."""
        self._get([rank.take_back.remote() for rank in self._ranks])

    def begin_trace(self) -> None:
        """``profiling.Recorded``."""
        self._get([rank.begin_trace.remote() for rank in self._ranks])

    def end_trace(self, file: Path) -> None:
        self._get([rank.end_trace.remote(file.resolve()) for rank in self._ranks])

    def _get(self, calls: Sequence[Any]) -> list[Any]:
        """The results of calls to the ranks, the i-th to rank i.

        Raises:
            HungError: A rank is stuck where no collective call of another one waits for it.
        """
        return get(calls, watch=Watch(self._collective_s / 4, self._refuse_stuck))

    def _refuse_stuck(self, pending: Sequence[int]) -> None:
        signs = {
            i: self._ranks[i].silent_s.options(concurrency_group=WATCHING).remote() for i in pending
        }
        silent, no_sign = outcomes(signs, self._collective_s)
        # By then the collective calls of the others have given up, and told.
        late = {i: f"{s:.0f} s" for i, s in silent.items() if s > 1.25 * self._collective_s}
        for rank, silence in (no_sign | late).items():
            raise HungError(
                f"rank {rank} is stuck ({silence}), longer than resources.collective_timeout_s="
                f"{self._collective_s:g}. --resume goes on from the last checkpoint"
            )

    def _begin(self) -> None:
        if self.colocation is not None:
            self.colocation.learn()

    def _shares(self, groups: Sequence[RolloutGroup]) -> list[list[int]]:
        """Indices of each share's groups, about equal in cost."""
        return balanced([self.cost(group) for group in groups], len(self))
