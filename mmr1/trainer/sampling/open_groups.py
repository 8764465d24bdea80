"""The groups of a streaming run between the draw of their prompts and the update."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from mmr1.rollout.engine import Request
from mmr1.trainer.sampling.replay import (
    completion_as_json,
    completion_from_json,
    rewards_as_json,
    scored_from_json,
)
from mmr1.types import Completion, Prompt, RolloutGroup, ScoredGroup


@dataclass
class OpenGroup:
    """A prompt that has been drawn.

    Attributes:
        completions: Those that have ended, by their index in the group.
        scored: None until all have ended and been scored.
    """

    request: Request
    completions: dict[int, Completion] = field(default_factory=dict)
    scored: ScoredGroup | None = None

    @property
    def is_whole(self) -> bool:
        """True if all completions have ended."""
        return len(self.completions) == self.request.n

    @property
    def unfinished(self) -> dict[int, Request]:
        """A request for each completion that has not ended, by its index."""
        request = self.request
        return {
            index: replace(request, n=1, seed=request.seed + index)
            for index in range(request.n)
            if index not in self.completions
        }

    @property
    def group(self) -> RolloutGroup:
        in_order = (self.completions[index] for index in range(self.request.n))
        return RolloutGroup(self.request.prompt, tuple(in_order))


class OpenGroups:
    """Open groups in the order in which their prompts were drawn, with their state for a resume.

    Args:
        find: Source and id of a sample to its prompt, to resume.

    Attributes:
        drawn: The prompts drawn so far in the run, those of groups that were learned from included.
    """

    def __init__(self, find: Callable[[str | None, str], Prompt]) -> None:
        self._find = find
        self._groups: dict[int, OpenGroup] = {}
        self.drawn = 0

    def __len__(self) -> int:
        return len(self._groups)

    def __iter__(self) -> Iterator[tuple[int, OpenGroup]]:
        """Each group with its number, the oldest first."""
        return iter(self._groups.items())

    def __getitem__(self, number: int) -> OpenGroup:
        return self._groups[number]

    def add(self, requests: Sequence[Request]) -> list[int]:
        """Take in requests for the prompts drawn next; returns the numbers of their groups."""
        numbers = list(range(self.drawn, self.drawn + len(requests)))
        self._groups.update(zip(numbers, map(OpenGroup, requests), strict=True))
        self.drawn += len(requests)
        return numbers

    def remove(self, number: int) -> ScoredGroup:
        """Take out a group that has been scored."""
        scored = self._groups.pop(number).scored
        assert scored is not None, number
        return scored

    def next(self, window: int) -> int | None:
        """The number of the group to learn from next; None while it has not been scored.

        It is the oldest, or the oldest scored one of the ``window`` prompts from that on that were
        drawn one after another.
        """
        oldest = next(iter(self._groups), 0)
        for number, group in self._groups.items():
            if number > oldest and number >= oldest + window:
                return None
            if group.scored is not None:
                return number
        return None

    def state_dict(self) -> dict[str, Any]:
        """Return the groups, with every completion that has ended, as JSON values."""
        return {"drawn": self.drawn, "groups": {str(i): _as_json(g) for i, g in self}}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Raises ValueError if the data no longer have the sample of a group."""
        self.drawn = state["drawn"]
        self._groups = {int(i): _from_json(g, self._find) for i, g in state["groups"].items()}

    def resumed(self) -> str:
        """Say what is kept of the groups that the interrupted run was sampling."""
        whole = sum(group.is_whole for _, group in self)
        missing = sum(len(group.unfinished) for _, group in self)
        return (
            f"streaming: {whole} of {len(self)} groups were sampled to the end and are kept; "
            f"{missing} unfinished completions of the others begin again"
        )


def _as_json(group: OpenGroup) -> dict[str, Any]:
    request = group.request
    sample = request.prompt.sample
    return {
        "source": sample.source,
        "id": sample.id,
        "n": request.n,
        "seed": request.seed,
        "completions": {str(i): completion_as_json(c) for i, c in group.completions.items()},
        "rewards": None if group.scored is None else rewards_as_json(group.scored),
    }


def _from_json(entry: Mapping[str, Any], find: Callable[[str | None, str], Prompt]) -> OpenGroup:
    request = Request(find(entry["source"], entry["id"]), entry["n"], entry["seed"])
    ended = {int(i): completion_from_json(c) for i, c in entry["completions"].items()}
    group = OpenGroup(request, ended)
    if entry["rewards"] is not None:
        group.scored = scored_from_json(entry["rewards"], group.group)
    return group
