"""Groups with rewards, and algorithms over them."""

from __future__ import annotations

import re

import numpy as np
import torch

from mmr1.config import AlgorithmConfig
from mmr1.trainer.algorithm import build_algorithm
from mmr1.trainer.sampling.experience import Models, build_experience
from mmr1.types import (
    Completion,
    Prompt,
    Reward,
    RolloutGroup,
    Sample,
    ScoredGroup,
    Status,
)
from tests.paths import REPOSITORY

PAGES = ("algorithms", "preferences", "extend")


DOCS = "\n".join((REPOSITORY / f"docs/{name}.md").read_text() for name in PAGES)


def completion(length: int, text: str = "") -> Completion:
    return Completion(np.arange(length), np.zeros(length, np.float32), text, False, 0)


def scored(lengths: list[int], rewards: list[float | None]) -> ScoredGroup:
    """A group with everything that any algorithm asks for."""
    group = RolloutGroup(Prompt(Sample("s", ()), "", ()), tuple(map(completion, lengths)))
    status = {True: Status.TIMEOUT, False: Status.OK}
    return ScoredGroup(
        group,
        tuple(Reward(r, status[r is None]) for r in rewards),
        greedy=Reward(0.5),
        steps=tuple(
            ((0, r or 0.0), (n - 1, r or 0.0)) for n, r in zip(lengths, rewards, strict=True)
        ),
    )


class Fixed:
    """A policy, reference or critic whose log-probs or values are given."""

    def __init__(self, value: float) -> None:
        self.value = value

    def logprobs(self, groups) -> torch.Tensor:
        lengths = [len(c.token_ids) for g in groups for c in g.completions]
        return torch.full((len(lengths), max(lengths)), self.value)

    values = logprobs


def experience_of(groups, config: AlgorithmConfig, reference: Fixed | None = None):
    critic = None if config.critic is None else Fixed(0.25)
    return build_experience(
        groups,
        build_algorithm(config, max_tokens=8),
        Models(Fixed(-1.0), reference, critic=critic),
    )


def own_algorithm() -> str:
    """The documentation's files in one; the whole loop runs it in ``test_loop.py``."""
    blocks = re.findall(r"```python\n(.*?)```", DOCS, re.S)
    return "\n".join(b for b in blocks if "median" in b or "def capped" in b)
