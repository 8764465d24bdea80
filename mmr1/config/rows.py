"""A row of the tables of ``checks.py``: keys that conflict, and the reason."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from mmr1.config.commands import Kind
from mmr1.config.secrets import mask_text
from mmr1.config.tree import Config

POLICY: tuple[Kind, ...] = ("policy",)
OFFLINE: tuple[Kind, ...] = ("offline",)
TRAINING: tuple[Kind, ...] = ("policy", "offline")
ALL: tuple[Kind, ...] = ("policy", "offline", "evaluation")


@dataclass(frozen=True, slots=True)
class Row:
    """A combination of keys that is refused or warned about.

    Attributes:
        keys: Paths of the keys that do not go together.
        wrong: Does the combination hold? It is asked for commands of these ``kinds`` only.
        why: What is wrong with it, and what to set instead.
        kinds: Kinds of commands that it applies to.
    """

    keys: tuple[str, ...]
    wrong: Callable[[Config], bool]
    why: str
    kinds: tuple[Kind, ...] = POLICY

    def message(self, config: Config) -> str:
        """The keys with their values, and the reason."""
        return f"{', '.join(_shown(config, key) for key in self.keys)}: {self.why}"


def _shown(config: Config, key: str) -> str:
    """The key with its value, if that is a number or a word."""
    value: object = config
    for name in key.split("."):
        value = getattr(value, name, None)
    if isinstance(value, bool):
        return f"{key}={str(value).lower()}"
    if isinstance(value, float):
        return f"{key}={value:g}"
    return f"{key}={mask_text(str(value))}" if isinstance(value, int | str) else key
