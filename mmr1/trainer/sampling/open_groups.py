"""The groups of a run between the draw of their prompts and the update."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from mmr1.rollout.protocol import Finished, Request, group_of
from mmr1.trainer.sampling.codec import decoded, encoded
from mmr1.trainer.sampling.plan import Part, Planner, Role
from mmr1.trainer.sampling.replay import rewards_as_json
from mmr1.types import Prompt, RolloutGroup, ScoredGroup


@dataclass
class OpenGroup:
    """A prompt that has been drawn.

    Attributes:
        step: The step of a synchronous run that would draw it.
        seed: Seed of its first completion.
        parts: Requests that the engine is asked for.
        ended: Its completions that have, by their index among those of all parts.
        scored: None until all have ended and been scored.
    """

    step: int
    prompt: Prompt
    seed: int
    parts: Sequence[Part]
    ended: dict[int, Finished] = field(default_factory=dict)
    scored: ScoredGroup | None = None

    @property
    def is_whole(self) -> bool:
        """True if all completions have ended, those beside the group included."""
        return len(self.ended) == sum(len(part.request.seeds) for part in self.parts)

    def missing(self, role: Role) -> Iterator[tuple[list[int], Request]]:
        """Return the requests to make, with the indices of the completions that they bring."""
        for part, places in self._places(role):
            left = [place for place in places if place not in self.ended]
            if left:
                seeds = tuple(part.request.seeds[place - places[0]] for place in left)
                yield left, replace(part.request, seeds=seeds)

    @property
    def group(self) -> RolloutGroup:
        return group_of(self.prompt, self._of("group"))

    @property
    def beside(self) -> tuple[str, ...]:
        """Texts for a reward that compares."""
        return tuple(ended.completion.text for ended in self._of("beside"))

    @property
    def greedy(self) -> RolloutGroup | None:
        """The greedy completion alone; None where none is sampled."""
        own = self._of("greedy")
        return group_of(self.prompt, own) if own else None

    def _of(self, role: Role) -> list[Finished]:
        """The completions of a role, in order, with the view that they saw."""
        return [
            _seen(self.ended[i], part.view) for part, places in self._places(role) for i in places
        ]

    def _places(self, role: Role) -> Iterator[tuple[Part, list[int]]]:
        """Each part of a role, with the indices of its completions."""
        first = 0
        for part in self.parts:
            places = list(range(first, first := first + len(part.request.seeds)))
            if part.role == role:
                yield part, places


class OpenGroups:
    """Open groups in the order in which their prompts were drawn, with their state for a resume.

    Args:
        find: Source and id of a sample to its prompt, to resume.
        plan: Says what to ask for.

    Attributes:
        drawn: The prompts drawn so far in the run, those of groups that were learned from included.
    """

    def __init__(self, find: Callable[[str | None, str], Prompt], plan: Planner) -> None:
        self._find, self._plan = find, plan
        self._groups: dict[int, OpenGroup] = {}
        self.drawn = 0

    def __len__(self) -> int:
        return len(self._groups)

    def __iter__(self) -> Iterator[tuple[int, OpenGroup]]:
        """Each group with its number, the oldest first."""
        return iter(self._groups.items())

    def __getitem__(self, number: int) -> OpenGroup:
        return self._groups[number]

    def add(self, step: int, prompts: Sequence[Prompt], seeds: Sequence[int]) -> list[int]:
        """Take in the prompts drawn next; returns the numbers of their groups."""
        first = self.drawn
        for prompt, seed in zip(prompts, seeds, strict=True):
            parts = self._plan(step, prompt, seed)
            self._groups[self.drawn] = OpenGroup(step, prompt, seed, parts)
            self.drawn += 1
        return list(range(first, self.drawn))

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
        self._groups = {int(i): self._from_json(g) for i, g in state["groups"].items()}

    def resumed(self) -> str:
        """Say what is kept of the groups that the interrupted run was sampling."""
        whole = sum(group.is_whole for _, group in self)
        all_of_them = sum(len(part.request.seeds) for _, group in self for part in group.parts)
        missing = all_of_them - sum(len(group.ended) for _, group in self)
        return (
            f"streaming: {whole} of {len(self)} groups were sampled to the end and are kept; "
            f"{missing} unfinished completions of the others begin again"
        )

    def _from_json(self, entry: Mapping[str, Any]) -> OpenGroup:
        step, seed = entry["step"], entry["seed"]
        prompt = self._find(entry["source"], entry["id"])
        ended = {int(i): Finished(0, int(i), *decoded(own)) for i, own in entry["ended"].items()}
        group = OpenGroup(step, prompt, seed, self._plan(step, prompt, seed), ended)
        if entry["rewards"] is not None:
            group.scored = ScoredGroup(group.group, *decoded(entry["rewards"]))
        return group


def _seen(ended: Finished, view: Mapping[str, float]) -> Finished:
    return replace(ended, completion=replace(ended.completion, view=view)) if view else ended


def _as_json(group: OpenGroup) -> dict[str, Any]:
    sample = group.prompt.sample
    return {
        "step": group.step,
        "source": sample.source,
        "id": sample.id,
        "seed": group.seed,
        "ended": {str(i): encoded((e.completion, e.prompt)) for i, e in group.ended.items()},
        "rewards": None if group.scored is None else rewards_as_json(group.scored),
    }
