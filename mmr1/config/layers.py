"""Lay layers of a configuration over each other: file over preset, command line over file.

Layers merge key by key, with one exception: a section of another type starts afresh, so that no
key of the old type lives on under the new one.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mmr1.config.section import Section, Shape, shapes

Tree = dict[str, Any]


def overlay(
    low: Mapping[str, Any],
    high: Mapping[str, Any],
    section: type[Section],
    notes: list[str],
    path: str = "",
) -> Tree:
    """``high`` over ``low``.

    Args:
        low: Values of a section, written out by this function.
        high: Values of the same section; they may be short.
        section: Its class.
        notes: Gets a line for each key that a changed type drops.
        path: Where the section is, with a dot behind it.
    """
    out = section.below(low, high)
    known = shapes(section)
    for key, value in high.items():
        here = f"{path}{key}"
        shape = known.get(key)
        if shape is None:
            out[key] = _plain(out.get(key), value)
        elif shape.is_mapping and isinstance(value, Mapping):
            entries = out.get(key)
            out[key] = _entries(
                entries if isinstance(entries, Mapping) else {}, value, shape, notes, here
            )
        else:
            out[key] = _one(out.get(key), value, shape, notes, here)
    return out


def _entries(
    low: Mapping[str, Any], high: Mapping[str, Any], shape: Shape, notes: list[str], path: str
) -> Tree:
    laid = {k: _one(low.get(k), v, shape, notes, f"{path}.{k}") for k, v in high.items()}
    return {**low, **laid}


def _one(low: Any, value: Any, shape: Shape, notes: list[str], path: str) -> Any:
    high = shape.expanded(value)
    if not isinstance(high, Mapping):
        return high
    below = low if isinstance(low, Mapping) else {}
    before = shape.kind(below)
    now = shape.kind({**below, **high})
    if before != now:
        gone = [key for key in non_defaults(below, shape) if key not in high]
        if gone:
            notes.append(f"{path}: {now} in place of {before}; {', '.join(gone)} dropped")
        below = {}
    section = shape.variants.get(now)
    return (
        {**below, **high} if section is None else overlay(below, high, section, notes, f"{path}.")
    )


def non_defaults(values: Mapping[str, Any], shape: Shape) -> Tree:
    """The values of a section that are not its class's defaults, without the discriminator."""
    section = shape.variants.get(shape.kind(values))
    fields = {} if section is None else section.model_fields
    return {
        key: value
        for key, value in values.items()
        if key not in ("type", "use") and (key not in fields or fields[key].default != value)
    }


def _plain(low: Any, high: Any) -> Any:
    """Merge mappings that are not sections, such as ``options``, key by key."""
    if not (isinstance(low, Mapping) and isinstance(high, Mapping)):
        return high
    return {**low, **{key: _plain(low.get(key), value) for key, value in high.items()}}
