"""Checks across sections: the needs of the sections that a command reads.

A need is stated by the section that has it, for a part in its file. The loader reports all that are
broken, not the first.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from mmr1.config.listing import KINDS
from mmr1.config.secrets import mask_text
from mmr1.config.tree import Config
from mmr1.part import Kind
from mmr1.section import Need, OwnPart, Section


def check(config: Config) -> None:
    """Refuse a configuration that breaks a need.

    Raises:
        ValueError: If it does. One line for each such need.
    """
    if problems := problems_of(config):
        raise ValueError("\n".join(problems))


def problems_of(config: Config, own: bool = False) -> list[str]:
    """Return one line for each broken need that is refused."""
    return [message(need, config) for need in broken(config, own) if not need.warns]


def warnings_of(config: Config) -> list[str]:
    """Return one line for each broken need that is warned of."""
    return [message(need, config) for need in broken(config) if need.warns]


def check_own_parts(config: Config) -> None:
    """Check the parts of a user's own code with the rest of the configuration.

    Rewards are left out: the sandbox loads them.

    Raises:
        ValueError: If one cannot be loaded, has other settings, or a need of it is broken.
    """
    for kind in KINDS.values():
        if not kind.called and kind.key.partition(".")[0] in config.sections:
            config = _with_resolved(config, kind, kind.key.split("."))
    if problems := problems_of(config, own=True):
        raise ValueError("\n".join(problems))


def _with_resolved(section: Any, kind: Kind, keys: list[str]) -> Any:
    """A copy of a section in which the user's own part, below these keys, has its typed section."""
    value = getattr(section, keys[0])
    inner = _with_resolved(value, kind, keys[1:]) if keys[1:] else kind.resolved(value)
    return section if inner is value else section.model_copy(update={keys[0]: inner})


def message(need: Need, config: Config) -> str:
    """Return the keys of a need with their values, and the reason."""
    return f"{', '.join(_shown(config, key) for key in need.keys)}: {need.why}"


def broken(config: Config, own: bool = False) -> Iterator[Need]:
    """Yield the needs that are broken; those of parts that are not loaded are not known yet."""
    command = config.declaration
    sections = [
        each
        for key in config.sections
        for each in _within(getattr(config, key))
        if own or not isinstance(each, OwnPart)
    ]
    for need in (*command.needs, *(need for section in sections for need in section.needs)):
        if command.kind in need.commands and need.broken(config):
            yield need


def _within(value: Any) -> Iterator[Section]:
    """Yield the section that a value is, and those within it."""
    if isinstance(value, Section):
        yield value
        value = dict(value)
    if isinstance(value, Mapping):
        for inner in value.values():
            yield from _within(inner)


def _shown(config: Config, key: str) -> str:
    """The key with its value, if that is a number or a word."""
    value: object = config
    for name in key.split("."):
        value = getattr(value, name, None)
    if isinstance(value, bool):
        return f"{key}={str(value).lower()}"
    if isinstance(value, float):
        return f"{key}={value:g}"
    return f"{key}={mask_text(str(value))}" if isinstance(value, int | str) else key
