"""A row of the tables of ``checks.py``: keys that conflict, and the reason."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from mmr1.config.commands import Command
from mmr1.config.secrets import mask_text
from mmr1.config.tree import Config

POLICY: tuple[Command, ...] = ("train", "iterate")
OFFLINE: tuple[Command, ...] = ("sft", "rm", "dpo")
TRAINING: tuple[Command, ...] = (*POLICY, *OFFLINE)
DPO: tuple[Command, ...] = ("dpo",)


@dataclass(frozen=True, slots=True)
class Row:
    """A combination of keys that is refused or warned about.

    Attributes:
        keys: Paths of the keys that do not go together.
        wrong: Does the combination hold? It is asked for the ``commands`` only.
        why: What is wrong with it, and what to set instead.
        commands: For which commands.
    """

    keys: tuple[str, ...]
    wrong: Callable[[Config], bool]
    why: str
    commands: tuple[Command, ...] = POLICY

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


def samples(c: Config) -> bool:
    """True if the run samples completions, as DPO does in rounds only."""
    if c.command == "dpo":
        return c.dpo.rounds is not None
    return c.command not in ("sft", "rm")
