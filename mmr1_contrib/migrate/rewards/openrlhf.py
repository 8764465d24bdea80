"""OpenRLHF's and LMM-R1's ``reward_func(queries, prompts, labels)``."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from mmr1.rewards.item import RewardItem
from mmr1.rewards.plugins.styles import Arguments, Dialect, RewardStyle, Signature


def _dialect(function: Callable[..., Any], options: Mapping[str, Any]) -> Dialect:
    return Dialect("OpenRLHF", "batch", _arguments)


def _arguments(items: Sequence[RewardItem]) -> Arguments:
    queries = [item.prompt + item.completion for item in items]
    return (queries, [i.prompt for i in items], [i.sample.answer for i in items]), {}


STYLE = RewardStyle(
    "OpenRLHF",
    ("def reward_func(queries, prompts, labels) -> dict, tensor or list",),
    (Signature(("queries", "prompts", "labels"), _dialect),),
)
