"""What holds for the migration of every project."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from mmr1.config import Config
from mmr1.migrate.source import Source, migrate


def silent_keys(source: Source, examples: Iterable[Mapping[str, Any]]) -> set[str]:
    """The keys of these examples that do nothing in any of them, and that no note names.

    A key does something if leaving it out changes the result. The project's own default of a key
    may do nothing: it is carried over without being named.
    """
    asked: set[str] = set()
    heard: set[str] = set()
    for keys in examples:
        base = migrate(source, keys)
        noted = "\n".join(base.notes)
        for key, value in keys.items():
            if value is None or value == source.defaults.get(source.older.get(key, key)):
                continue
            asked.add(key)
            if key not in heard and (key in noted or _changes(source, keys, key, base)):
                heard.add(key)
    return asked - heard


def _changes(source: Source, keys: Mapping[str, Any], key: str, base: Any) -> bool:
    try:
        changed = migrate(source, {k: v for k, v in keys.items() if k != key})
    except ValueError:
        return True
    return (changed.tree, changed.notes) != (base.tree, base.notes)


def unlisted_keys(source: Source, examples: Iterable[Mapping[str, Any]]) -> set[str]:
    """The keys of these examples that are in no list, so not in the documentation's table."""
    keys = {source.older.get(key, key) for example in examples for key in example}
    return {k for k in keys if not any(k == n or k.startswith(f"{n}.") for n in source.known)}


def ours_exists(key: str) -> bool:
    """Is ``a.b.c`` a key of our configuration?"""
    section: object = Config
    for name in key.split("."):
        fields = getattr(section, "model_fields", None)
        if fields is None:
            return True  # below a mapping such as rewards.functions
        if name not in fields:
            return False
        section = fields[name].annotation
    return True
