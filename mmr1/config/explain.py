"""Explain errors of a configuration, one line per problem: the key, and the remedy."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from types import UnionType
from typing import Union, get_args, get_origin

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from mmr1.config.secrets import redact
from mmr1.config.tree import Config
from mmr1.section import OWN, Section, Shape, shapes

UNIONS = (Union, UnionType)


@dataclass(frozen=True, slots=True)
class _Place:
    """The place of a problem.

    Attributes:
        names: Keys that lead there, without pydantic's tags.
        section: The class that holds the last of them; None within a plain mapping.
        kind: The variant that this class is; empty for a section without alternatives.
        shape: Value that the last key may hold, if sections.
    """

    names: tuple[str, ...]
    section: type[Section] | None
    kind: str
    shape: Shape | None

    @property
    def key(self) -> str:
        return ".".join(self.names)

    @property
    def parent(self) -> str:
        return ".".join(self.names[:-1])


def explain(error: ValidationError, source: str) -> list[str]:
    """One line per problem; a missing key is left out where an unknown one is its misspelling."""
    problems = [(_place(problem["loc"]), problem) for problem in _relevant(error.errors())]
    lines: dict[str, str] = {}
    missing: dict[str, str] = {}
    suggested: set[str] = set()
    for place, problem in problems:
        if problem["type"] == "extra_forbidden":
            hint, meant = _unknown(place)
            suggested.add(meant)
            lines.setdefault(place.key, f"unknown key '{place.key}'{hint}")
        elif problem["type"] == "missing":
            missing[place.key] = (
                f"'{place.key}' is missing; set it in the file or as {place.key}=..."
            )
        else:
            lines.setdefault(place.key, _wrong_value(place, problem))
    kept = [text for key, text in missing.items() if key not in suggested]
    return [f"{source}: {text}" for text in (*lines.values(), *kept)]


def _relevant(problems: list[ErrorDetails]) -> list[ErrorDetails]:
    """Drop "should be a string" where a mapping was given for one, and has an error itself."""
    specific = [
        p for p in problems if p["type"] != "string_type" or not isinstance(p["input"], Mapping)
    ]
    return specific or problems


def _place(location: Sequence[int | str]) -> _Place:
    """Follow a location of pydantic's through the classes, without the tags of unions in it."""
    section: type[Section] | None = Config
    holder, kind, shape = section, "", None
    names: list[str] = []
    parts = list(location)
    inner_kind = ""
    while parts:
        part = parts.pop(0)
        names.append(str(part))
        holder, kind = section, inner_kind
        shape = shapes(section).get(str(part)) if section else None
        section, inner_kind = None, ""
        if shape is None:
            if parts and holder and _is_plain_union(holder, str(part)):
                parts.pop(0)  # pydantic's name of a member
            continue
        if shape.is_mapping and parts:
            names.append(str(parts.pop(0)))
        if len(shape.variants) > 1 or shape.by_type:
            if parts and parts[0] in shape.variants:
                inner_kind = str(parts.pop(0))
                section = shape.variants[inner_kind]
        else:
            section = shape.classes[0]
            if parts and parts[0] in ("str", section.__name__):
                parts.pop(0)
    return _Place(tuple(names), holder, kind, shape)


def _is_plain_union(section: type[Section], key: str) -> bool:
    """True if the key has several types, none of them a section."""
    field = section.model_fields.get(key)
    members = get_args(field.annotation) if field and get_origin(field.annotation) in UNIONS else ()
    return sum(member is not type(None) for member in members) > 1


def _wrong_value(place: _Place, problem: ErrorDetails) -> str:
    if problem["type"] == "union_tag_invalid" and place.shape is not None:
        tag = str(problem["ctx"]["tag"])
        known = place.shape.variants
        names = [name for name in known if name != OWN]
        hint = near(tag, names) or f"; it may be {', '.join(names)}"
        return f"'{place.key}.type': there is no '{tag}'{hint}"
    message = _message(place, problem)
    value = redact(problem["input"], path=tuple(place.names))
    shown = "" if isinstance(value, Mapping | Section) else f" (it is {value!r})"
    return f"'{place.key}': {message}{shown}" if place.names else f"{message}"


def _message(place: _Place, problem: ErrorDetails) -> str:
    """Say what a value must be, in the words of a configuration file."""
    kind = problem["type"]
    if kind in ("tuple_type", "list_type", "set_type", "frozen_set_type"):
        return "it must be a list, such as [a, b]"
    if kind in ("dict_type", "mapping_type", "model_type", "model_attributes_type"):
        return "it must be a mapping, such as {key: value}"
    if kind == "union_tag_not_found" and place.shape is not None:
        return f"its keys must tell which of {', '.join(place.shape.variants)} it is"
    return problem["msg"].removeprefix("Value error, ")


def _unknown(place: _Place) -> tuple[str, str]:
    """The text after ``unknown key 'x'``, and the path of the key that was perhaps meant."""
    leaf = place.names[-1]
    prefix = f"{place.parent}." if place.parent else ""
    valid = [key for key in (place.section.model_fields if place.section else ()) if key != "type"]
    why = f": type '{place.kind}' has no '{leaf}'" if place.kind else ""
    static = _without_names(place)
    others = [kind for kind in _kinds_with(static) if kind not in ("", OWN)]
    if others:
        shown = ", ".join(others[:4]) + (f" and {len(others) - 4} more" if len(others) > 4 else "")
        return f"{why}; type {shown} {'has' if len(others) == 1 else 'have'} it", ""
    close = [f"{prefix}{key}" for key in difflib.get_close_matches(leaf, valid, 1, 0.6)]
    elsewhere = (_same_name(leaf, prefix), *close, _flat(leaf, prefix))
    if meant := next(filter(None, close if place.kind else elsewhere), ""):
        return f"{why}; did you mean '{meant}'?", meant
    return f"{why}; valid keys here: {', '.join(valid)}", ""


def _without_names(place: _Place) -> str:
    """The key's path with NAME in the place of the name of a reward function."""
    names = list(place.names)
    if names[:1] == ["rewards"] and len(names) > 2:
        names[1] = "NAME"
    return ".".join(names)


def _same_name(leaf: str, prefix: str) -> str | None:
    """A key of this very name: below this section first, then the one nearest to the root."""
    same = [path for path, _ in key_paths() if path.rpartition(".")[2] == leaf]
    return min(same, key=lambda path: (not path.startswith(prefix), path.count(".")), default=None)


def _flat(leaf: str, prefix: str) -> str | None:
    """A key below this section whose path, written flat, is like this one."""
    below = [path for path, _ in key_paths() if path.startswith(prefix)]
    flat = {path.removeprefix(prefix).replace(".", "_"): path for path in below}
    close = difflib.get_close_matches(leaf, list(flat), 1, 0.75)
    return flat[close[0]] if close else None


def _kinds_with(path: str) -> list[str]:
    return list(dict.fromkeys(kind for known, kind in key_paths() if known == path))


def near(word: str, words: Iterable[str]) -> str:
    """``"; did you mean 'x'?"`` for the nearest of the words, or an empty string."""
    found = difflib.get_close_matches(word, list(words), 1, 0.6)
    return f"; did you mean '{found[0]}'?" if found else ""


@cache
def key_paths() -> tuple[tuple[str, str], ...]:
    """The path of every key, with the variant whose key it is; that is empty for most.

    Entries of mappings have the name NAME.
    """
    return tuple(dict.fromkeys(_paths(Config, "", "")))


def _paths(section: type[Section], prefix: str, kind: str) -> Iterator[tuple[str, str]]:
    known = shapes(section)
    for key in section.model_fields:
        yield f"{prefix}{key}", kind
        shape = known.get(key)
        if shape is None:
            continue
        below = f"{prefix}{key}.NAME." if shape.is_mapping else f"{prefix}{key}."
        several = len(shape.variants) > 1 or shape.by_type
        for name, inner in shape.variants.items():
            yield from _paths(inner, below, name if several else "")
