"""What a configuration sets, where each value is from, and how two differ in what they do."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from mmr1.config.file import config_from, load, overlay, read_layer, redacted
from mmr1.config.overrides import nested, read_overrides
from mmr1.config.presets import with_preset
from mmr1.config.tree import Config
from mmr1.part import written

Values = dict[str, Any]
NO_EFFECT = ("trainer.output_dir", "trainer.tracking", "algorithm.name", "eval.output_dir")
"""Keys that name a run, or a preset, and change nothing that it does."""
DEFAULT = "default"


def flat(tree: Mapping[str, Any], prefix: str = "") -> Values:
    """Return every value of a tree by its dotted key."""
    found: Values = {}
    for key, value in tree.items():
        below = isinstance(value, Mapping) and value
        found |= flat(value, f"{prefix}{key}.") if below else {f"{prefix}{key}": value}
    return found


def values_with_origins(
    path: Path, overrides: Sequence[str], command: str
) -> list[tuple[str, Any, str]]:
    """Return each value of a configuration: its key, the value and its origin.

    An origin is ``file``, ``override``, ``preset NAME``, ``part NAME``, ``command`` for what
    follows from the command or another key, or ``default``.

    Raises:
        ValueError: If the configuration is refused.
    """
    config = load(path, overrides, command).config
    file = flat(overlay({}, read_layer(path), Config, []))
    given = flat(overlay({}, nested(read_overrides(overrides)), Config, []))
    plain = flat(redacted(config_from({"model": {"path": ""}}, (), command)))
    preset = flat({"algorithm": with_preset({"name": config.algorithm.name})})
    shown = flat(redacted(config))
    return [
        (key, value, _origin(key, value, (given, file, preset, plain), shown))
        for key, value in shown.items()
    ]


def _origin(key: str, value: Any, layers: tuple[Values, ...], shown: Values) -> str:
    given, file, preset, plain = layers
    if plain.get(key, ...) == value:
        return DEFAULT
    if key in given:
        return "override"
    if key in file:
        return "file"
    if value is None or value is False:
        return DEFAULT  # of a part
    if preset.get(key, ...) == value:
        return f"preset {shown['algorithm.name']}"
    section = key.rpartition(".")[0]
    while section:
        kind = shown.get(f"{section}.type")
        if kind is not None and kind != plain.get(f"{section}.type"):
            return f"part {kind}"
        section = section.rpartition(".")[0]
    return "command"


def difference(one: Config, other: Config) -> Iterator[tuple[str, str, str]]:
    """Yield what differs between two configurations: the key and both values.

    A part of another type is one line with its settings. Names of runs are left out, and so is a
    preset: one that is spelled out gives no line.
    """
    first, second = flat(redacted(one)), flat(redacted(other))
    parts = {key.removesuffix(".type") for key in {*first, *second} if key.endswith(".type")}
    changed = {p for p in parts if first.get(f"{p}.type") != second.get(f"{p}.type")}
    outer = {p for p in changed if not any(p.startswith(f"{o}.") for o in changed)}
    for part in sorted(outer):
        yield part, _part(first, part), _part(second, part)
    for key in sorted({*first, *second}):
        within = any(key == p or key.startswith(f"{p}.") for p in outer)
        if not within and not key.startswith(NO_EFFECT) and first.get(key) != second.get(key):
            yield key, written(first.get(key)), written(second.get(key))


def _part(values: Values, part: str) -> str:
    """Return a part on one line: its type, and the settings that are neither null nor false."""
    below = {k.removeprefix(f"{part}."): v for k, v in values.items() if k.startswith(f"{part}.")}
    if "type" not in below:
        return "off"
    kind = below.pop("type")
    settings = [f"{k}={written(v)}" for k, v in below.items() if v not in (None, False)]
    return f"{kind} ({', '.join(settings)})" if settings else str(kind)
