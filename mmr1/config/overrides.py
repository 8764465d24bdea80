"""Overrides, ``key.path=value``: each value is read by the type of its key."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import yaml
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from mmr1.config.tree import Config
from mmr1.config.yaml_limits import one_line
from mmr1.section import Section, Shape, section_classes, shapes

UNREADABLE = (ValueError, AttributeError, RecursionError)
"""Errors of PyYAML for some texts, besides its own."""


class Entries(dict[str, Any]):
    """Entries of a mapping that dotted keys name. The mapping's other entries stay."""


def nested(values: Mapping[str, Any]) -> Entries:
    """Return a tree of values whose keys may have dots.

    Raises:
        ValueError: If a key gives a whole, and another a part of it.
    """
    wholes = [key for key, value in values.items() if not isinstance(value, Mapping)]
    refuse_contradictions(wholes, values)
    tree = Entries()
    for key, value in values.items():
        *above, last = key.split(".")
        inner = tree
        for name in above:
            below = inner.get(name)
            if not isinstance(below, Entries):
                below = Entries(below or {})
            inner[name] = below
            inner = below
        inner[last] = value
    return tree


def read_overrides(overrides: Sequence[str]) -> dict[str, Any]:
    """Return the values of overrides by key, the last of a key; short forms are written out.

    Raises:
        ValueError: If one is not ``key=value``, has no valid value, or contradicts another.
    """
    given: dict[str, Any] = {}
    for override in overrides:
        key, separator, text = override.partition("=")
        if not separator or not key:
            raise ValueError(f"override '{override}' is not of the form key.path=value")
        for long, value in _written_out(key, _value(key, text)):
            given.pop(long, None)
            given[long] = value
    refuse_contradictions(given, given)
    return given


def refuse_contradictions(wholes: Iterable[str], keys: Iterable[str]) -> None:
    """Refuse a key that gives a whole beside one that gives a part of it.

    Raises:
        ValueError: If there are such keys.
    """
    for key in wholes:
        for other in keys:
            if other.startswith(f"{key}."):
                raise ValueError(
                    f"{key} and {other} contradict each other: one gives the whole, and one a part "
                    "of it; leave one of them out"
                )


def _written_out(key: str, value: Any) -> Iterator[tuple[str, Any]]:
    """Write ``x=gspo`` out as ``x.type=gspo``, so that the order of overrides does not matter."""
    shape = next((found for found in _at(key) if isinstance(found, Shape)), None)
    is_short = shape is not None and not isinstance(value, Mapping)
    written = shape.expanded(value) if shape is not None and is_short else None
    if isinstance(written, Mapping):
        yield from ((f"{key}.{below}", part) for below, part in written.items())
    else:
        yield key, value


def _value(key: str, text: str) -> Any:
    """Return the value that a text has for a key.

    A text where the key takes texts, and YAML where it takes anything else.
    """
    kinds = kinds_of(key)
    if text in ("null", "") and NoneType in kinds:
        return None
    if str not in kinds or kinds == {Any}:
        return _yaml(key, text)
    if text[:1] in ("{", "[") and kinds & {dict, list}:
        return _yaml(key, text)
    if kinds & {bool, int, float}:
        value = _number(text)
        return text if value is None else value
    return text


def kinds_of(key: str) -> set[Any]:
    """Return the classes of values that a key takes; ``dict`` and ``list`` stand for YAML's."""
    return {kind for found in _at(key) for kind in _kinds(found)}


def _number(text: str) -> bool | int | float | None:
    try:
        value = yaml.safe_load(text)
    except (yaml.YAMLError, *UNREADABLE):
        return None
    return value if isinstance(value, bool | int | float) else None


def _yaml(key: str, text: str) -> Any:
    try:
        node = yaml.compose(text)
        value = OmegaConf.to_container(OmegaConf.from_dotlist([f"value={text}"]))
    except (yaml.YAMLError, OmegaConfBaseException, *UNREADABLE) as error:
        if not _at(key):
            return text  # the key itself is unknown
        if isinstance(error, UNREADABLE):
            raise ValueError(f"override '{key}': its value is not valid YAML") from error
        raise ValueError(f"override '{key}={text}' is not valid YAML: {one_line(error)}") from error
    assert isinstance(value, dict)
    if isinstance(node, yaml.MappingNode) and (empty := list(empty_keys(node))):
        raise ValueError(
            f"override '{key}={text}': {', '.join(empty)}: no value is given; write 'key: value', "
            "with a space after the colon"
        )
    if value["value"] is None and text not in ("", "null", "Null", "NULL", "~"):
        raise ValueError(f"override '{key}={text}': YAML reads no value in it; put it in quotes")
    return value["value"]


def empty_keys(node: yaml.Node | None, path: str = "") -> Iterator[str]:
    """Yield the keys with nothing behind them: YAML's null, and rarely meant so."""
    if not isinstance(node, yaml.MappingNode):
        return
    for key, value in node.value:
        here = f"{path}{key.value}"
        if isinstance(value, yaml.ScalarNode) and value.value == "" and value.style is None:
            yield here
        yield from empty_keys(value, f"{here}.")


def _at(key: str) -> list[Any]:
    """Return what a key may hold: a :class:`Shape` for sections, else its types."""
    sections: tuple[type[Section], ...] = (Config,)
    names = key.split(".")
    while names:
        name = names.pop(0)
        having = [section for section in sections if name in section.model_fields]
        inner = [shapes(section)[name] for section in having if name in shapes(section)]
        if not inner:
            return _below([s.model_fields[name].annotation for s in having], names)
        shape = inner[0]
        if shape.is_mapping:
            if not names:
                return [dict[str, Any]]
            names.pop(0)
        if not names:
            plain = [] if shape.is_mapping else [s.model_fields[name].annotation for s in having]
            return [shape, *plain]
        sections = tuple(each for found in inner for each in found.classes)
    return []


def _below(annotations: list[Any], names: list[str]) -> list[Any]:
    """Return the types of the entry ``names`` of plain mappings of these types."""
    for _ in names:
        inner = [part for each in annotations for part in _parts(each)]
        annotations = [get_args(part)[1] for part in inner if get_origin(part) is dict]
    return annotations


def _parts(annotation: Any) -> Iterator[Any]:
    """Yield the members of a union, without annotations."""
    if get_origin(annotation) is Annotated:
        yield from _parts(get_args(annotation)[0])
    elif get_origin(annotation) in (Union, UnionType):
        for member in get_args(annotation):
            yield from _parts(member)
    else:
        yield annotation


def _kinds(found: Any) -> Iterator[Any]:
    """Yield the kinds of values of a shape, or of a type."""
    if isinstance(found, Shape):
        yield from (str, dict)
        if found.is_mapping:
            yield NoneType  # it takes the entry out
        if found.is_mapping or not found.by_type:
            yield from (int, float)
        return
    for part in _parts(found):
        origin = get_origin(part)
        if origin is Literal:
            yield from (type(value) for value in get_args(part))
        elif origin in (tuple, list, set, frozenset):
            yield list
        elif origin in (dict, Mapping) or origin is not None:
            yield dict
        elif not list(section_classes(part)):
            yield part
