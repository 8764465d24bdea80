"""The keys that recipes set most, for the help of a command."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from textwrap import shorten

from mmr1.config.file import config_from, overlay, read_layer
from mmr1.config.show import flat
from mmr1.config.tree import Config
from mmr1.section import OWN, Section, shapes

WIDTH = 80


def frequent_keys(
    recipes: Iterable[Path], command: str, count: int = 30
) -> Iterator[tuple[str, str]]:
    """Yield the keys of a command that most of these files set, each with what it does."""
    found: Counter[str] = Counter()
    for path in recipes:
        found.update(flat(overlay({}, read_layer(path), Config, [])).keys())
    read = config_from({"model": {"path": ""}}, (), command).sections
    for key, _ in sorted(found.items(), key=lambda each: (-each[1], each[0])):
        about = _about(key) if key.partition(".")[0] in read else ""
        if about and count > 0:
            count -= 1
            yield key, about


def help_of_keys(recipes: Iterable[Path], command: str) -> str:
    """Return the lines of a command's help on its keys, at most 80 columns wide."""
    keys = dict(frequent_keys(recipes, command))
    width = max(map(len, keys)) + 2
    lines = [
        f"  {key:<{width}}{shorten(about, WIDTH - width - 2, placeholder='…')}"
        for key, about in keys.items()
    ]
    return "\n".join(["Keys that recipes set most (docs/configuration.md has all):", *lines, ""])


def _about(key: str) -> str:
    """Return what a key does, or may be, by the default variants; empty for a user's own key."""
    section: type[Section] = Config
    names: tuple[str, ...] = ()
    *above, leaf = key.split(".")
    for name in above:
        shape = shapes(section).get(name)
        if shape is None or shape.is_mapping:
            return ""
        section, names = shape.classes[0], tuple(n for n in shape.variants if n != OWN)
    field = section.model_fields.get(leaf)
    if field is None:
        return ""
    return ", ".join(names) if leaf == "type" else field.description or ""
