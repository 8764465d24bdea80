"""What holds for the migration of every project."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

from mmr1.config import Config
from mmr1.config.explain import key_paths
from mmr1.config.file import config_from
from mmr1_contrib.migrate.migration import Migration
from mmr1_contrib.migrate.source import Source, migrate


def loaded(source: Source, migration: Migration) -> Config:
    """What our command reads of the migrated file; a variable of the environment stands for one."""
    tree = json.loads(json.dumps(migration.tree).replace("${", "{"))
    return config_from(tree, command=source.command)


def all_notes(migration: Migration) -> list[str]:
    return [*migration.notes, *migration.unneeded]


def silent_keys(source: Source, examples: Iterable[Mapping[str, Any]]) -> set[str]:
    """The keys of these examples that do nothing in any of them, and that no note names.

    A key does something if the result is another one without it, or with another value. The
    project's own default of a key may do nothing: it is carried over without being named. So may a
    former name beside today's.
    """
    asked: set[str] = set()
    heard: set[str] = set()
    for keys in examples:
        base = migrate(source, keys)
        noted = "\n".join(all_notes(base))
        for key, value in keys.items():
            today = source.older.get(key, key)
            repeats = today != key and keys.get(today) == value
            if value is None or value == source.defaults.get(today) or repeats:
                continue
            asked.add(key)
            if key not in heard and (today in noted or _counts(source, keys, key, base)):
                heard.add(key)
    return asked - heard


def _doubled(value: Any) -> Any:
    """Of a number, a text or a list."""
    return value * 2


def _counts(source: Source, keys: Mapping[str, Any], key: str, base: Migration) -> bool:
    without = {k: v for k, v in keys.items() if k != key}
    value = keys[key]
    other = {bool: lambda v: not v, dict: lambda v: {**v, "x": 1}}.get(type(value), _doubled)(value)
    for changed in (without, {**keys, key: other}):
        try:
            migration = migrate(source, changed)
        except ValueError:
            return True
        if (migration.tree, all_notes(migration)) != (base.tree, all_notes(base)):
            return True
    return False


def unlisted_keys(source: Source, examples: Iterable[Mapping[str, Any]]) -> set[str]:
    """The keys of these examples that are in no list, so not in the documentation's table."""
    keys = {source.older.get(key, key) for example in examples for key in example}
    return {k for k in keys if not any(k == n or k.startswith(f"{n}.") for n in source.known)}


def ours_exists(key: str) -> bool:
    """Is ``a.b.c`` a key of our configuration, of any type of its section?"""
    return key in {path for path, _ in key_paths()}
