"""The built-in rewards by name, and ``auto``, which picks one by the sample's task."""

from __future__ import annotations

import importlib
from collections.abc import Callable

from mmr1.registry import Registry
from mmr1.rewards.item import Job

REWARDS = Registry(
    "reward",
    {
        "format": "mmr1.rewards.format:format",
        "math": "mmr1.rewards.mathematics:math",
    },
    group="mmr1.rewards",
)

# Checks of a gold answer at load; they raise BadGoldError or return a Job for the sandbox.
GOLD_CHECKS = {
    "math": "mmr1.rewards.mathematics:math_gold",
}


def gold_check(name: str) -> Callable[..., Job | None] | None:
    """The function that checks a built-in's gold answers, where it has one."""
    if name not in GOLD_CHECKS:
        return None
    module, _, attribute = GOLD_CHECKS[name].partition(":")
    check: Callable[..., Job | None] = getattr(importlib.import_module(module), attribute)
    return check
