"""Checks across sections: the needs of the sections that a command reads.

A need is stated by the section that has it, for a part in its file. The loader reports all that are
broken, not the first.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from mmr1.algorithms import advantage, loss
from mmr1.config.secrets import mask_text
from mmr1.config.tree import Config
from mmr1.section import Need, Section


def check(config: Config) -> None:
    """Refuse a configuration that breaks a need.

    Raises:
        ValueError: If it does. One line for each such need.
    """
    if problems := problems_of(config):
        raise ValueError("\n".join(problems))


def problems_of(config: Config) -> list[str]:
    """Return one line for each broken need that is refused."""
    return [message(need, config) for need in broken(config) if not need.warns]


def warnings_of(config: Config) -> list[str]:
    """Return one line for each broken need that is warned of."""
    return [message(need, config) for need in broken(config) if need.warns]


def check_own_parts(config: Config) -> None:
    """Check the advantage and the loss of a user's own code with the rest of the configuration.

    Raises:
        ValueError: If one cannot be loaded, has other settings, or a need of it is broken.
    """
    algorithm = config.algorithm
    parts = {
        "advantage": advantage.resolved(algorithm.advantage),
        "loss": loss.resolved(algorithm.loss),
    }
    check(config.model_copy(update={"algorithm": algorithm.model_copy(update=parts)}))


def message(need: Need, config: Config) -> str:
    """Return the keys of a need with their values, and the reason."""
    return f"{', '.join(_shown(config, key) for key in need.keys)}: {need.why}"


def broken(config: Config) -> Iterator[Need]:
    """Yield the needs that a configuration breaks, also those that are warned of."""
    command = config.declaration
    sections = [each for key in config.sections for each in _within(getattr(config, key))]
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
