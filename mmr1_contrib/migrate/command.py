"""The command: a file with its overrides, as migrated YAML or side by side."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from mmr1.config import Config
from mmr1.config.checks import broken
from mmr1_contrib.migrate.migration import Migration, Tree
from mmr1_contrib.migrate.reading import Given, read
from mmr1_contrib.migrate.source import Source, idle_keys, migrate
from mmr1_contrib.migrate.sources import sources_of


@dataclass(frozen=True, slots=True)
class Migrated:
    """A migrated file of another project.

    Attributes:
        path: The file.
        given: Keys and values of the source.
        migration: Migration of these keys.
    """

    path: Path
    given: Given
    migration: Migration

    @property
    def lost(self) -> list[str]:
        """Losses and differences, and steps that the user has to take by hand."""
        return [*self.given.notes, *self.migration.notes]

    @property
    def yaml(self) -> str:
        """Our YAML, with comments at the top: what is lost, and then what was not needed."""
        notes = [self._origin, *self.lost, *self.migration.unneeded, *self._to_run]
        comments = "".join(f"# {' '.join(note.split())}\n" for note in notes)
        order = list(Config.model_fields)
        tree = {key: self.migration.tree[key] for key in order if key in self.migration.tree}
        return comments + yaml.safe_dump(_type_first(tree), sort_keys=False, allow_unicode=True)

    @property
    def side_by_side(self) -> str:
        """The settings of the loss, theirs and ours, and the notes."""
        rows = comparison(self.given.source, self.migration)
        return _lines([*rows, "", *self.lost, *self.migration.unneeded, *self._to_run])

    def report(self, output: Path) -> str:
        """The message when the YAML is in a file: first the losses."""
        count = len(self.migration.unneeded)
        rest = [f"not needed in mmr1, and listed in {output}: {count}"] if count else []
        found = "lost or different in mmr1:" if self.lost else "nothing is lost"
        head = f"wrote {output} {self._origin}; {found}"
        lost = [f"- {' '.join(note.split())}" for note in self.lost]
        return _lines([head, *lost, *rest, *self._to_run])

    @property
    def _origin(self) -> str:
        return f"from {self.path}, read as {self.given.source.title}"

    @property
    def _to_run(self) -> Iterator[str]:
        if self.given.source.command != "train":
            yield f"run it with mmr1 {self.given.source.command}"


def migrate_file(
    path: Path, overrides: Sequence[str] = (), *, project: str | None = None
) -> Migrated:
    """Migrate a configuration. Without a ``project`` the content of the file tells it.

    Raises:
        ValueError: The file cannot be read, or is not a configuration of a project that is known.
    """
    try:
        given = read(path, overrides, sources_of(project), named=project is not None)
        migration = migrate(given.source, given.keys)
        _set_folder(migration.tree, given.folder)
        leave_out_idle(migration, given.source.command)
        return Migrated(path, given, migration)
    except ValueError as error:
        message = str(error)
        raise ValueError(message if str(path) in message else f"{path}: {message}") from error


def leave_out_idle(migration: Migration, command: str) -> None:
    """Leave out what our commands would warn of, because it has no effect with the rest."""
    config = Config.model_validate(migration.tree).for_command(command)
    for key, why in [(k, need.why) for need in broken(config) if need.warns for k in need.keys]:
        section, _, name = key.rpartition(".")
        held = _at(migration.tree, section)
        if held and name in held:
            migration.unneeded.append(f"{key}={held.pop(name)!r}: {why}")


_FILE = re.compile(r"(?![/~$]|\w+://)[^:]*\.(py|jinja|txt|jsonl?|parquet|ya?ml)(:.*|@\w+)?")
"""A relative path of a file, and not a name on the Hub."""


def _set_folder(tree: Tree, folder: str) -> None:
    """Give relative paths of files the folder that the script changes into before its run."""

    def inside(name: Any) -> Any:
        return f"{folder}/{name}" if isinstance(name, str) and _FILE.fullmatch(name) else name

    if not folder:
        return
    data, validation = tree.get("data", {}), tree.get("trainer", {}).get("validation") or {}
    rewards = tree.get("rewards", {}).values()
    places = [(data, "train"), (data, "prompt_template"), (validation, "data")]
    for section, key in [*places, *((reward, "type") for reward in rewards)]:
        if isinstance(named := section.get(key), dict):
            section[key] = {inside(name): share for name, share in named.items()}
        elif key in section:
            section[key] = inside(named)


_DECIDING = re.compile(
    r"(algorithm(?!\.name)|dpo)\b|rollout\.(n|temperature)$|data\.train_batch_size$"
)
"""Our keys that decide what a loss is of."""


def comparison(source: Source, migration: Migration) -> list[str]:
    """The settings of the loss side by side: theirs as they read them, ours as here.

    One that has no effect together with the others is left out.
    """
    ours = Config.model_validate(migration.tree).model_dump()
    decided = {k: list(filter(_DECIDING.match, source.ours(k))) for k in migration.theirs}
    deciding = [key for key, names in decided.items() if names]
    idle = idle_keys(source, migration.given, deciding)
    rows = [(source.title, "", "mmr1", "")]
    for key in deciding:
        if key not in idle:
            values = ", ".join(_shown(_at(ours, name)) for name in decided[key])
            short = ", ".join(name.partition(".")[2] for name in decided[key])
            rows.append((key, str(migration.theirs[key]), short, values))
    widths = [max(len(row[column]) for row in rows) for column in range(4)]
    return [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    ]


def _shown(value: Any) -> str:
    """A value in YAML; for a section its type."""
    if isinstance(value, Mapping):
        return str(value.get("type", value))
    return "null" if value is None else str(value)


def _at(tree: Tree, key: str) -> Any:
    """The value at ``a.b.c``; None where the section is missing, or of another type."""
    value: Any = tree
    for name in key.split("."):
        value = value.get(name) if isinstance(value, Mapping) else None
    return value


def _type_first(tree: Any) -> Any:
    if not isinstance(tree, dict):
        return tree
    keys = sorted(tree, key=lambda key: key not in ("name", "type"))
    return {key: _type_first(tree[key]) for key in keys}


def _lines(lines: Iterable[str]) -> str:
    return "".join(f"{line}\n" for line in lines)
