"""Which reward functions other machines can run in place of this one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from mmr1.rewards.functions import AutoReward, BuiltinReward, DerivedReward, RewardFunction
from mmr1.rewards.item import RewardItem, without_bytes
from mmr1.rewards.plugins.user_function import PluginReward
from mmr1.types import Reward, Sample


class OtherMachines(Protocol):
    """Machines that run reward functions of a configuration, with worker processes of their own."""

    def values(
        self, names: Sequence[str], items: Sequence[RewardItem], *, whole: bool
    ) -> list[dict[str, Reward]]:
        """As ``CompositeReward.values``.

        Args:
            names: Functions that are run one after the other where an item is.
            items: Those of a group are neighbours, and stay together.
            whole: One machine gets them all.
        """
        ...


@dataclass(slots=True)
class Stretch:
    """Reward functions that are run one after the other in the same place.

    Attributes:
        names: Theirs, in order.
        movable: Another machine can run them. What asks a server costs no CPU time here, and a
            plugin that is not isolated may need what only this machine has, and one that stands on
            other functions their values, which are here.
        whole: It is one call for all items.
        reads_media: A function asks for media.
        reads_tokens: A function may ask for the completions' tokens.
    """

    names: list[str]
    movable: bool
    whole: bool = False
    reads_media: bool = False
    reads_tokens: bool = False

    def to_send(self, items: Sequence[RewardItem]) -> list[RewardItem]:
        """The items as another machine gets them: without what is long and no function reads."""
        light: dict[int, Sample] = {}  # completions of a prompt share their sample
        for item in items:
            if id(item.sample) not in light:
                media = self.reads_media
                light[id(item.sample)] = item.sample if media else without_bytes(item.sample)
        if self.reads_tokens:
            return [replace(item, sample=light[id(item.sample)]) for item in items]
        return [replace(item, sample=light[id(item.sample)], token_ids=()) for item in items]


def stretches(functions: Mapping[str, RewardFunction]) -> list[Stretch]:
    """All functions in order, as few stretches as possible."""
    found: list[Stretch] = []
    for name, function in functions.items():
        last = found[-1] if found else Stretch([], movable=True)
        plugin = function if isinstance(function, PluginReward) else None
        movable = _movable(function, last)
        whole = movable and plugin is not None and plugin.batch
        if not found or movable != last.movable or whole or last.whole:
            found.append(Stretch([], movable, whole))
        found[-1].names.append(name)
        found[-1].reads_media |= plugin is not None and plugin.reads_media
        if not isinstance(function, BuiltinReward | AutoReward) or function.reads_tokens:
            found[-1].reads_tokens = True
    return found


def _movable(function: RewardFunction, last: Stretch) -> bool:
    """Whether it can run elsewhere, after this stretch."""
    if isinstance(function, DerivedReward):
        # Nothing joins a stretch that is one call; then what it reads is here.
        joins = last.movable and not last.whole
        return function.needs is None or (joins and function.needs in last.names)
    if isinstance(function, PluginReward):
        return function.isolated and not function.reads_earlier
    return isinstance(function, BuiltinReward | AutoReward)
