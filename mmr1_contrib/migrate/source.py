"""A kind of configuration of another project, and how any of them is carried over.

The other project's own defaults count: a key that the file leaves out has the value that the
project gives it, and that value is carried over. Every key is carried, or a note says what it meant
and why it has no counterpart.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from pydantic import ValidationError

from mmr1.config import Config
from mmr1.config.checks import check
from mmr1.config.commands import refuse_unread
from mmr1.config.explain import explain
from mmr1.config.secrets import redact
from mmr1.registry import suggest
from mmr1_contrib.migrate.migration import Migration, Tree

Carry = Callable[[Tree, Migration], None]
"""Takes keys out of their flat configuration and sets ours."""
_OURS = re.compile(r"`([\w.]+)(?:=[^`]*)?`")


@dataclass(frozen=True, slots=True)
class Source:
    """A kind of configuration of another project.

    Keys are flat: ``a.b.c``.

    Attributes:
        project: The project, as ``--from`` names it.
        kind: The configuration, as ``--from`` names it; empty where a project has only one.
        title: Project and configuration, as the documentation names them.
        program: Command that a script starts, as patterns of one or several words.
        if_named: Programs besides that may be theirs, where ``--from`` names the project.
        arguments: How a command line gives the keys: ``a.b=value`` (hydra) or ``--a value``.
        config_argument: The argument that names a YAML file; empty if there is none.
        is_theirs: Are these the keys of such a configuration?
        carry: Functions for the keys that are carried together with others.
        defaults: Values of keys that are left out, where they matter to what is sampled and
            learned.
        older: Former names of keys.
        renamed: Their key to ours, where the value stays the same.
        translated: Their key to ours and the values' names, where these differ.
        composed: Keys that ``carry`` takes, with their meaning here, for the documentation.
        unneeded: Keys without a counterpart, or sections of such keys, and why there is none.
        nullable: Keys with a default that null switches off; for others it is as good as nothing.
        whole: Keys whose value is a mapping that stays together.
        command: Our command that runs what comes out.
        sure: Its program is its own: a command that starts it is theirs, whatever its keys.
    """

    project: str
    title: str
    program: tuple[str, ...]
    arguments: Literal["hydra", "options"]
    is_theirs: Callable[[Mapping[str, Any]], bool]
    carry: tuple[Carry, ...]
    defaults: Mapping[str, Any]
    composed: Mapping[str, str]
    unneeded: Mapping[str, str]
    renamed: Mapping[str, str] = field(default_factory=dict)
    translated: Mapping[str, tuple[str, Mapping[Any, Any]]] = field(default_factory=dict)
    older: Mapping[str, str] = field(default_factory=dict)
    nullable: frozenset[str] = frozenset()
    whole: frozenset[str] = frozenset()
    config_argument: str = ""
    command: str = "train"
    kind: str = ""
    if_named: tuple[str, ...] = ()
    sure: bool = True

    @property
    def known(self) -> list[str]:
        """Every key that the lists name, including sections of keys."""
        lists = (self.defaults, self.renamed, self.translated, self.composed, self.unneeded)
        return sorted({key for names in lists for key in names})

    def ours(self, key: str) -> list[str]:
        """Our keys that a key of theirs decides, by the lists."""
        if key in self.translated:
            return [self.translated[key][0]]
        said = self.renamed.get(key) or " ".join(_OURS.findall(self.composed.get(key, "")))
        return said.split()


def migrate(source: Source, theirs: Mapping[str, Any]) -> Migration:
    """Migrate a configuration, flat or nested.

    Raises:
        ValueError: If one of the values is not valid here.
    """
    given: Tree = {}
    spelled: dict[str, str] = {}
    conflicts: list[tuple[str, Any, str, Any]] = []
    for name, value in flattened(theirs, source.whole).items():
        key = source.older.get(name, name)
        if value is not None or key in source.nullable:
            typed = _typed(name, value, source.defaults.get(key))
            spelled.setdefault(key, name)
            if given.setdefault(key, typed) != typed:
                conflicts.append((name, typed, key, given[key]))
    migration, left = _carried(source, given)
    doubtful = [k for k, v in given.items() if v != source.defaults.get(k) and k not in left]
    idle = idle_keys(source, given, doubtful)
    for name, value, key, other in conflicts:
        migration.note(name, value, f"it means the same as {key}, which is given too: {other!r}")
    for at, note in enumerate(migration.notes):  # by the names that the file has
        key, colon, rest = note.partition(":")
        migration.notes[at] = f"{spelled.get(key, key)}{colon}{rest}"
    _note_remaining(source, left, spelled, migration)
    if idle:
        pairs = ", ".join(f"{spelled[key]}={_redacted(key, given[key])!r}" for key in idle)
        migration.unneeded.append(f"{pairs}: without effect together with the other keys")
    _check(source, migration)
    return migration


def _carried(source: Source, given: Tree) -> tuple[Migration, Tree]:
    """Carry over the given keys with their project's defaults; returns those not taken, too."""
    flat = {k: v for k, v in {**source.defaults, **given}.items() if v is not None}
    migration = Migration(given=given, theirs=dict(flat))
    try:
        for carry in source.carry:
            carry(flat, migration)
    except TypeError as error:  # a text where a number or a list should be
        unknown = [f"{k}={v}" for k, v in given.items() if isinstance(v, str) and "$" in v]
        raise ValueError(
            f"a value is of another kind than it should be ({error}); give it as an override"
            + (f". Not known: {', '.join(unknown)}" if unknown else "")
        ) from error
    except ZeroDivisionError as error:
        zeros = [f"{k}={v}" for k, v in given.items() if v == 0 and not isinstance(v, bool)]
        raise ValueError(f"{', '.join(zeros)}: one of these must be at least 1") from error
    for key, ours in source.renamed.items():
        if key in flat:
            migration.set(ours, flat.pop(key))
    for key, (ours, names) in source.translated.items():
        if key in flat:
            _translate(migration, key, flat.pop(key), ours, names)
    return migration, {key: value for key, value in flat.items() if key in given}


def _redacted(key: str, value: Any) -> Any:
    """A value without secrets in clear."""
    return redact(value, path=tuple(key.split(".")))


def flattened(tree: Mapping[str, Any], whole: frozenset[str] = frozenset()) -> Tree:
    """``{a: {b: 1}}`` as ``{a.b: 1}``; the mappings of the keys ``whole`` stay together."""
    flat: Tree = {}

    def add(prefix: str, section: Mapping[str, Any]) -> None:
        for name, value in section.items():
            key = f"{prefix}{name}"
            if name == "_target_":  # hydra's name of a class, no setting
                continue
            if isinstance(value, Mapping) and value and key not in whole:
                add(f"{key}.", value)
            else:
                flat[key] = value

    add("", tree)
    return flat


def _typed(key: str, value: Any, default: Any) -> Any:
    """A number if the default is one: YAML takes ``1e-6`` for a text."""
    if not isinstance(value, str) or not isinstance(default, int | float):
        return value
    if isinstance(default, bool):
        raise ValueError(f"{key}={value}: this must be true or false; give it as an override")
    try:
        number = float(value)
    except ValueError as error:
        raise ValueError(
            f"{key}={value}: this must be a number; give it as an override, {key}=NUMBER"
        ) from error
    return int(number) if isinstance(default, int) and number.is_integer() else number


def _translate(
    migration: Migration, key: str, value: Any, ours: str, names: Mapping[Any, Any]
) -> None:
    if value in names:
        migration.set(ours, names[value])
    else:
        migration.note(key, value, f"has no counterpart; {ours} keeps its default")


def _note_remaining(
    source: Source, left: Tree, names: Mapping[str, str], migration: Migration
) -> None:
    """Note the given keys that no part of the migration has taken, one line per section."""
    left = {key: _redacted(key, value) for key, value in left.items()}
    sections: dict[str, list[str]] = {}
    for key in left:
        sections_of_key = [n for n in source.unneeded if key == n or key.startswith(f"{n}.")]
        section = max(sections_of_key, key=len, default=None)
        if section is not None:
            sections.setdefault(section, []).append(key)
        elif key in source.composed:
            why = f"not carried over by itself: {source.composed[key]}"
            migration.note(names[key], left[key], why)
        else:
            near = suggest(key, [*source.older, *source.known])
            migration.note(key, left[key], f"no key that is known here, and left out{near}")
    for section, keys in sections.items():
        why = f"not needed; {source.unneeded[section]}"
        if len(keys) == 1:
            migration.unneeded.append(f"{names[keys[0]]}: {left[keys[0]]!r}: {why}")
            continue
        begins = f"{section}."
        values = ", ".join(f"{names[k].removeprefix(begins)}={left[k]!r}" for k in keys)
        is_theirs = any(names[k].startswith(begins) for k in keys)
        note = f"{section}: {values}: {why}" if is_theirs else f"{values}: {why}"
        migration.unneeded.append(note)


def _check(source: Source, migration: Migration) -> None:
    """Check that the result is a configuration that the command takes.

    Raises:
        ValueError: If the result is no configuration; a key of theirs that is missing is named as
            theirs.
    """
    try:
        config = Config.model_validate(migration.tree)
    except ValidationError as error:
        first = error.errors()[0]
        key = ".".join(map(str, first["loc"]))
        if first["type"] == "missing" and key in source.renamed.values():
            theirs = next(name for name, ours in source.renamed.items() if ours == key)
            theirs = next((old for old, today in source.older.items() if today == theirs), theirs)
            raise ValueError(f"{theirs} is not given; add {theirs}=... to the command") from error
        raise ValueError("\n".join(explain(error, "the migrated configuration"))) from error
    config = config.for_command(source.command)
    refuse_unread(migration.tree, config, "the migrated configuration")
    check(config)


def idle_keys(source: Source, given: Tree, doubtful: Iterable[str]) -> list[str]:
    """The keys that other keys make idle, such as the coefficient of a KL that is switched off.

    A key has an effect if the result is another one without it, or with another value.

    Args:
        source: The kind of configuration.
        given: Their keys by today's names, flat.
        doubtful: Keys that may have no effect.
    """
    base = _carried(source, given)[0]

    def changes(keys: Tree) -> bool:
        try:
            result = _carried(source, keys)[0]
        except (ValueError, TypeError):  # a value that counts enough to be refused
            return True
        return (result.tree, result.notes) != (base.tree, base.notes)

    def has_effect(key: str) -> bool:
        without = {name: value for name, value in given.items() if name != key}
        value = given.get(key, source.defaults.get(key))
        return changes(without) or any(changes({**given, key: v}) for v in _others(value))

    return [key for key in doubtful if not has_effect(key)]


def _others(value: Any) -> tuple[Any, ...]:
    """Other values of the same kind."""
    if isinstance(value, bool):
        return (not value,)
    if isinstance(value, int):
        return value * 2, value // 2, value + 1
    if isinstance(value, float):
        return value * 2, value / 2, value + 1
    if isinstance(value, Mapping):
        return ({**value, "x": 1},)
    if isinstance(value, list):  # of the same length
        return ([next(iter(_others(item)), None) for item in value] or ["x"],)
    return (value * 2,) if isinstance(value, str) else ()
