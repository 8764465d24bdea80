"""The command: a file with its overrides, as migrated YAML or side by side."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml

from mmr1.config import Config
from mmr1_migrate.migration import Migration, Tree
from mmr1_migrate.reading import read
from mmr1_migrate.source import Source, migrate
from mmr1_migrate.sources import sources_of


def migrate_file(
    path: Path, overrides: Sequence[str] = (), *, project: str | None = None, check: bool = False
) -> str:
    """The migrated YAML, with the notes as comments at the top.

    With ``check`` the settings of the loss side by side instead, and the notes. Without a
    ``project`` the content of the file tells it.

    Raises:
        ValueError: The file cannot be read, or is no configuration of a project that is known.
    """
    sources = sources_of(project)
    try:
        given = read(path, overrides, sources)
        migration = migrate(given.source, given.keys)
    except ValueError as error:
        message = str(error)
        raise ValueError(message if str(path) in message else f"{path}: {message}") from error
    notes = [*given.notes, *migration.notes]
    if check:
        return "".join(f"{line}\n" for line in [*comparison(given.source, migration), "", *notes])
    head = [f"from {path}, read as {given.source.title}", *notes]
    comments = "".join(f"# {' '.join(note.split())}\n" for note in head)
    return comments + yaml.safe_dump(migration.tree, sort_keys=False, allow_unicode=True)


def comparison(source: Source, migration: Migration) -> list[str]:
    """The settings of the loss side by side: theirs as they are read there, ours as here.

    One that their project does not read with these other settings is left out.
    """
    ours = Config.model_validate(migration.tree).model_dump()
    rows = [(source.title, "", "mmr1", "")]
    for key, names in source.loss_settings.items():
        switch, counts = source.in_force.get(key, (key, _always))
        if not counts(migration.theirs.get(switch)):
            continue
        values = ", ".join(str(_at(ours, name)) for name in names)
        theirs = migration.theirs.get(key)
        rows.append((key, str(theirs), ", ".join(n.rpartition(".")[2] for n in names), values))
    widths = [max(len(row[column]) for row in rows) for column in range(4)]
    return [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    ]


def _always(value: Any) -> bool:
    return True


def _at(tree: Tree, key: str) -> Any:
    """The value at ``a.b.c``; None below a section that is not there."""
    value: Any = tree
    for name in key.split("."):
        value = None if value is None else value[name]
    return value
