"""Commands that packages beside the core add to a command line, by entry points."""

from __future__ import annotations

import sys
from collections.abc import Mapping

import typer

from mmr1.registry import Registry, reinstall

HEADING = "Commands of mmr1_contrib and other packages"
"""Heading of these commands in ``--help``."""


def add_commands(group: str, apps: Mapping[str, typer.Typer]) -> None:
    """Add the commands of an entry-point group, each of which is a function that Typer can run.

    One that is not there ends the program with one line: whoever imports this starts it.

    Args:
        group: Name of the entry-point group.
        apps: Apps by the words before the last of a command's name: ``""`` for ``migrate``,
            ``recipe`` for ``recipe check``.
    """
    registry = Registry("command", {}, group=group)
    for name in sorted(registry.names()):
        words, _, command = name.rpartition(" ")
        try:
            if words not in apps:
                raise ValueError(f"'{name}': there is no '{words}'; {reinstall(group, name)}")
            apps[words].command(command, rich_help_panel=HEADING)(registry.load(name))
        except ValueError as error:
            print(f"error: {error}", file=sys.stderr)
            sys.exit(2)
