"""A configuration that is being migrated."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

Tree = dict[str, Any]


def because(why: str, section: str, names: str) -> dict[str, str]:
    """The reason that several keys of a section share, by key; the names stand between blanks."""
    return {f"{section}.{name}" if section else name: why for name in names.split()}


@dataclass(slots=True)
class Migration:
    """A migrated configuration.

    Attributes:
        tree: Our configuration, with the keys that theirs sets or takes for granted.
        notes: Settings that are lost or different in mmr1, and what the user has to do by hand.
        unneeded: Keys that need no counterpart, and keys that other keys make idle.
        given: Their keys that the file gives, by today's names.
        theirs: Their settings, as their project reads them, by key.
    """

    tree: Tree = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    unneeded: list[str] = field(default_factory=list)
    given: Tree = field(default_factory=dict)
    theirs: Tree = field(default_factory=dict)

    def set(self, key: str, value: Any) -> None:
        """Set ``a.b.c``."""
        *sections, name = key.split(".")
        section = self.tree
        for name_of_section in sections:
            section = section.setdefault(name_of_section, {})
        section[name] = value

    def note(self, key: str, value: Any, why: str) -> None:
        """Note a setting that is not carried over unchanged."""
        self.notes.append(f"{key}: {value!r}: {why}")
