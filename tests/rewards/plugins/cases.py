"""Rows of a project, and what its own trainer would have its reward functions pay for them."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from mmr1.config import ScoringConfig, read_rewards
from mmr1.data.forms import read_row
from mmr1.data.forms.form import Place
from mmr1.rewards import RewardItem, build_composite_reward
from mmr1.types import Reward
from tests.paths import REPOSITORY

GRID = (1, 4, 6)
PROMPT = "<|user|>What?<|assistant|>"
Group = tuple[dict[str, Any], Sequence[str]]
"""A row and the completions of its prompt."""
Direct = Callable[[Callable[..., Any], dict[str, Any], Sequence[str], Path], Sequence[Any]]
"""From the function, a row and its completions to what the project's trainer would get."""


@dataclass(frozen=True)
class Case:
    """A reward function of a project, rows for it, and the direct call."""

    project: str
    function: str
    groups: Sequence[Group]
    direct: Direct


def items_of(groups: Sequence[Group], media: Path) -> list[RewardItem]:
    """The completions of all prompts, as a run has them."""
    return [
        RewardItem(
            text,
            read_row(row, Place(media, "unit", number)),
            prompt=PROMPT,
            token_ids=(7, 8, 9),
            group=number,
            grid_thw=(GRID,),
        )
        for number, (row, texts) in enumerate(groups)
        for text in texts
    ]


def score(
    functions: dict[str, dict[str, Any]], items: Sequence[RewardItem], **of_section: Any
) -> list[Reward]:
    config = read_rewards(functions), ScoringConfig(workers=1, timeout_s=60.0, **of_section)
    with build_composite_reward(*config) as composite:
        return composite.score(items)


def section(package: str, project: str, function: str, **more: Any) -> dict[str, Any]:
    """The section of a function in a package of the tests, which has a file for each project."""
    folder = REPOSITORY / package.replace(".", "/")
    return {"type": f"{folder / project}.py:{function}", **more}


def errors(rewards: Sequence[Reward]) -> list[str | None]:
    return [reward.error for reward in rewards]


def check_case(package: str, case: Case, isolated: bool, media: Path) -> list[Reward]:
    """The rewards, which are what the project's trainer would have."""
    module = importlib.import_module(f"{package}.{case.project}")
    function = getattr(module, case.function)
    expected = [
        value for row, texts in case.groups for value in case.direct(function, row, texts, media)
    ]
    items = items_of(case.groups, media)
    sandbox = {"readable": [str(media)]} if isolated else None
    given = section(package, case.project, case.function, sandbox=sandbox)
    rewards = score({"theirs": given}, items)
    assert errors(rewards) == [None] * len(items)
    assert [reward.value for reward in rewards] == pytest.approx(expected)
    return rewards
