"""The command: a file with its overrides, as migrated YAML or side by side."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from mmr1.config import Config
from mmr1.migrate.easyr1 import migrate
from mmr1.migrate.easyr1_keys import LOSS_SETTINGS
from mmr1.migrate.migration import Migration, Tree


def migrate_file(path: Path, overrides: Sequence[str] = (), *, check: bool = False) -> str:
    """The migrated YAML, with the notes as comments at the top.

    With ``check`` the settings of the loss side by side instead, and the notes.

    Raises:
        ValueError: The file cannot be read or is no EasyR1 configuration.
    """
    try:
        theirs = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise ValueError(f"{path} cannot be read: {' '.join(str(error).split())}") from error
    if not isinstance(theirs, dict):
        raise ValueError(f"{path}: the configuration must be a mapping of keys to values")
    try:
        migration = migrate(with_overrides(theirs, overrides))
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error
    if check:
        return "".join(f"{line}\n" for line in [*comparison(migration), "", *migration.notes])
    notes = "".join(f"# {note}\n" for note in [f"from {path}", *migration.notes])
    return notes + yaml.safe_dump(migration.tree, sort_keys=False, allow_unicode=True)


def with_overrides(theirs: Mapping[str, Any], overrides: Sequence[str]) -> Tree:
    """Their configuration with the ``a.b=value`` of a command line, as EasyR1's scripts have them.

    Raises:
        ValueError: One has no ``=``.
    """
    tree = copy.deepcopy(dict(theirs))
    for override in overrides:
        key, equals, text = override.partition("=")
        if not equals:
            raise ValueError(f"'{override}' is no override; write it as key=value")
        *sections, name = key.split(".")
        section = tree
        for section_name in sections:
            section = section.setdefault(section_name, {})
        value = yaml.safe_load(text)
        both = isinstance(value, dict) and isinstance(section.get(name), dict)
        section[name] = {**section[name], **value} if both else value
    return tree


def comparison(migration: Migration) -> list[str]:
    """The settings of the loss side by side: theirs as EasyR1 reads them, ours as mmr1 does."""
    ours = Config.model_validate(migration.tree).model_dump()
    rows = [("EasyR1", "", "mmr1", "")]
    for key, names in LOSS_SETTINGS.items():
        values = ", ".join(str(_at(ours, name)) for name in names)
        theirs = migration.theirs.get(key)
        rows.append((key, str(theirs), ", ".join(n.rpartition(".")[2] for n in names), values))
    widths = [max(len(row[column]) for row in rows) for column in range(4)]
    return [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    ]


def _at(tree: Tree, key: str) -> Any:
    for name in key.split("."):
        tree = tree[name]
    return tree
