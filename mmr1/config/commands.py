"""Which sections each command reads.

A configuration has every section in Python. Of the file of a command, those that it does not read
are refused, and those that it reads are written.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Literal

Command = Literal["train", "iterate", "sft", "dpo", "rm", "eval"]
SECTIONS = ("rollout", "environment", "rewards", "algorithm", "sft", "dpo", "rm", "iterate", "eval")
"""The sections that not every command reads."""


@dataclass(frozen=True, slots=True)
class Reads:
    """What a command reads.

    Attributes:
        always: Sections that it needs, whose defaults apply where the file has none.
        also: Sections that it reads if the file has them.
        in_rounds: Sections that it reads with ``dpo.rounds`` only.
        any_file: It takes the file of any command, and passes over what it does not read.
    """

    always: tuple[str, ...]
    also: tuple[str, ...] = ()
    in_rounds: tuple[str, ...] = ()
    any_file: bool = False


READS: Mapping[Command, Reads] = MappingProxyType(
    {
        "train": Reads(("rollout", "rewards", "algorithm", "eval"), ("environment",)),
        "iterate": Reads(("rollout", "rewards", "algorithm", "iterate", "eval"), ("environment",)),
        "sft": Reads(("sft",), ("environment",)),
        "dpo": Reads(("dpo",), in_rounds=("rollout", "rewards", "eval")),
        "rm": Reads(("rm",)),
        "eval": Reads(("rollout", "rewards", "eval"), ("environment",), any_file=True),
    }
)


def sections_of(command: Command, in_rounds: bool) -> tuple[str, ...]:
    """The sections that a command reads, of those in :data:`SECTIONS`."""
    reads = READS[command]
    return (*reads.always, *reads.also, *(reads.in_rounds if in_rounds else ()))


def refuse_unread(tree: Mapping[str, Any], command: Command, source: str) -> None:
    """Refuse the sections that a command does not read.

    Raises:
        ValueError: Names them all.
    """
    dpo = tree.get("dpo")
    in_rounds = isinstance(dpo, Mapping) and dpo.get("rounds") is not None
    read = sections_of(command, in_rounds)
    unread = [key for key in SECTIONS if key not in read and tree.get(key) is not None]
    if unread and not READS[command].any_file:
        raise ValueError(
            "\n".join(
                f"{source}: section '{key}': mmr1 {command} does not read it; leave it out"
                for key in unread
            )
        )


def command_of(tree: Mapping[str, Any]) -> Command:
    """The command that a file is for, by its sections; of a run, the command that wrote it."""
    named: tuple[Command, ...] = ("iterate", "dpo", "rm", "sft")
    for command in named:
        if tree.get(command) is not None:
            return command
    if tree.get("algorithm") is not None:
        return "train"
    if tree.get("eval") is not None:
        return "eval"
    return "train" if tree.get("rollout") is not None else "sft"
