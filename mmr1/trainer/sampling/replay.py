"""Selective sample replay (VL-Rethinker, arXiv 2504.08837): groups with a signal are used again.

As training continues, more and more groups have rewards that are all equal, and no gradient.
Earlier groups that had one take their places. Their completions are of an earlier policy, so the
policy loss is corrected for the probabilities that they were sampled with (``rollout_correction``).
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch

from mmr1.algorithms.baselines import grpo
from mmr1.config import ReplayConfig
from mmr1.data.rows import ids_of
from mmr1.trainer.sampling.codec import decoded, encoded
from mmr1.types import Prompt, RolloutGroup, Sample, ScoredGroup, StepStats


class KeptGroups:
    """Groups that later steps learn from, with their state for a resume.

    Args:
        find: Source and id of a sample to its prompt, to resume.
    """

    def __init__(self, find: Callable[[str | None, str], Prompt]) -> None:
        self._find = find
        self._groups: list[ScoredGroup] = []

    @property
    def groups(self) -> list[ScoredGroup]:
        """A new list of the groups."""
        return list(self._groups)

    def keep(self, groups: Sequence[ScoredGroup]) -> None:
        """Replace the kept groups."""
        self._groups = list(groups)

    def state_dict(self) -> dict[str, Any]:
        return self.state_now()()

    def state_now(self) -> Callable[[], dict[str, Any]]:
        """A function that gives the present state; encoding it takes a while."""
        groups = self._groups  # the list is replaced, never changed
        return lambda: {"groups": [as_json(group, self._find) for group in groups]}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the groups. Raises ValueError if the data no longer have one of their samples."""
        self._groups = [from_json(entry, self._find) for entry in state["groups"]]


class Replay:
    """The last ``capacity`` groups that had a signal.

    Args:
        has_signal: Is a group one to learn from?
        kept: Holds the groups.
    """

    def __init__(
        self,
        config: ReplayConfig,
        seed: int,
        has_signal: Callable[[ScoredGroup], bool],
        kept: KeptGroups,
    ) -> None:
        self._config = config
        self._seed = seed
        self._has_signal = has_signal
        self.kept = kept

    def fill(
        self, step: int, sampled: Sequence[ScoredGroup]
    ) -> tuple[list[ScoredGroup], StepStats]:
        """A step's groups, earlier ones in the places of those without a signal; and metrics.

        The step's own groups with a signal are kept for later.

        An earlier group j is drawn with probability ``|A_j| / sum of |A_k|``, once at
        most, ``|A|`` the mean of its completions' absolute advantages as in GRPO. Where there are
        too few, groups without a signal stay.
        """
        places = [i for i, g in enumerate(sampled) if not self._has_signal(g)]
        earlier = self._draw(step, len(places))
        groups = list(sampled)
        for place, group in zip(places, earlier, strict=False):
            groups[place] = group
        own = [g for g in sampled if self._has_signal(g)]
        self.kept.keep([*self.kept.groups, *own][-self._config.capacity :])
        size = len(self.kept.groups)
        return groups, {"replay/num_groups": float(len(earlier)), "replay/size": float(size)}

    def _draw(self, step: int, count: int) -> list[ScoredGroup]:
        groups = self.kept.groups
        count = min(count, len(groups))
        if count == 0:
            return []
        digest = hashlib.sha256(f"{self._seed}/{step}".encode()).digest()
        weights = np.array([mean_advantage(g) for g in groups])
        rng = np.random.default_rng(int.from_bytes(digest))
        drawn = rng.choice(len(weights), count, replace=False, p=weights / weights.sum())
        return [groups[index] for index in drawn]


def mean_advantage(scored: ScoredGroup) -> float:
    """The mean of the group's ``|A|``, with GRPO's A; a little above 0 where it is 0."""
    valid = torch.tensor([[r.valid for r in scored.rewards]])
    values = torch.tensor([[r.value or 0.0 for r in scored.rewards]])
    return max(float(grpo(values, valid).abs().mean()), 1e-6)


def prompt_finder(
    sources: Mapping[str, Sequence[Sample]], render: Callable[[Sample], Prompt]
) -> Callable[[str | None, str], Prompt]:
    """A function from source and id of a training sample to its prompt."""

    def find(source: str | None, name: str) -> Prompt:
        for samples in sources.values():
            names = ids_of(samples)
            if name in names and (sample := samples[names.index(name)]).source == source:
                return render(sample)
        raise ValueError(
            f"the checkpoint has a group of sample '{name}' of {source}, which the data do not "
            "have; resume with the original data, or start a new run"
        )

    return find


def as_json(scored: ScoredGroup, find: Callable[[str | None, str], Prompt]) -> dict[str, Any]:
    """Return a group as JSON values; its prompt only where an environment has added to it."""
    prompt, completions = scored.group.prompt, scored.group.completions
    sample = prompt.sample
    added = any(len(c.spans) > 0 for c in completions) and find(sample.source, sample.id) != prompt
    return {
        "source": sample.source,
        "id": sample.id,
        "prompt": encoded(prompt) if added else None,
        "completions": encoded(completions),
        "rewards": rewards_as_json(scored),
    }


def rewards_as_json(scored: ScoredGroup) -> Any:
    """Return what scoring has added to a group, as JSON values."""
    return encoded((scored.rewards, scored.greedy, scored.steps))


def from_json(entry: Mapping[str, Any], find: Callable[[str | None, str], Prompt]) -> ScoredGroup:
    """Return the group that :func:`as_json` wrote."""
    prompt = find(entry["source"], entry["id"])
    group = RolloutGroup(decoded(entry["prompt"]) or prompt, decoded(entry["completions"]))
    return ScoredGroup(group, *decoded(entry["rewards"]))
