"""The base class of all sections, the loader's questions to it, and shared field types."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from types import UnionType
from typing import Annotated, Any, ClassVar, Literal, Self, Union, get_args, get_origin

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    field_validator,
    model_validator,
)

from mmr1.machine import auto_dtype

Dtype = Literal["float32", "bfloat16"]


def resolved(value: Any) -> Any:
    """The data type that ``auto`` stands for on this machine."""
    return auto_dtype() if value == "auto" else value


def _ascending(pair: tuple[float, float]) -> tuple[float, float]:
    if pair[0] >= pair[1]:
        raise ValueError("the first must be below the second")
    return pair


EngineDtype = Literal["float32", "bfloat16", "float16"]
AutoDtype = Annotated[Dtype, BeforeValidator(resolved)]
"""``auto`` becomes what suits this machine, so that the configuration of a run names it."""
Fraction = Annotated[float, Field(ge=0, le=1)]
Share = Annotated[float, Field(gt=0, le=1)]
Positive = Annotated[int, Field(gt=0)]
Count = Annotated[int, Field(ge=0)]
Coefficient = Annotated[float, Field(gt=0)]
"""Above 0: a term whose coefficient is 0 is a section that is null."""
Interval = Annotated[tuple[float, float], AfterValidator(_ascending)]
Url = Annotated[str, Field(pattern="^https?://")]


CommandKind = Literal["policy", "offline", "evaluation"]
POLICY: tuple[CommandKind, ...] = ("policy",)
OFFLINE: tuple[CommandKind, ...] = ("offline",)
TRAINING: tuple[CommandKind, ...] = ("policy", "offline")
ALL: tuple[CommandKind, ...] = ("policy", "offline", "evaluation")
OWN = "own"
"""Variant of a section for a part from a user's own code."""


@dataclass(frozen=True, slots=True)
class Need:
    """A need of a section towards the rest of the configuration.

    Attributes:
        keys: Paths of the keys that decide it.
        broken: True for a configuration that breaks the need.
        why: Reason, and the remedy.
        broken_by: Overrides that break it, for the test of all needs.
        warns: The run does as it is written, and less than it seems to.
        commands: Kinds of commands that have the need.
        command: Command that the overrides are for.
    """

    keys: tuple[str, ...]
    broken: Callable[[Any], bool]
    why: str
    broken_by: tuple[str, ...]
    warns: bool = False
    commands: tuple[CommandKind, ...] = POLICY
    command: str = "train"


class Section(BaseModel):
    """A section: unknown keys are errors, and values are frozen after loading.

    A section with alternatives is a union of classes. Most are told apart by their key ``type``;
    the first class of the union is the default. Where the values tell, the classes share a base
    with ``variant_of``, and each has a ``variant``.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, defer_build=True, allow_inf_nan=False)
    variant: ClassVar[str] = ""
    needs: ClassVar[tuple[Need, ...]] = ()

    @classmethod
    def variant_of(cls, values: Mapping[str, Any]) -> str:
        """The ``variant`` of the class that these values are for, in a union without ``type``."""
        raise AssertionError(f"{cls.__name__} belongs to no union without type")

    @classmethod
    def expanded(cls, short: Any) -> Any:
        """Write out a short form of the section; the value itself if it is not one."""
        return short

    @classmethod
    def below(cls, values: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
        """The ``values`` that remain when a layer ``above`` is laid over them."""
        return dict(values)

    @model_validator(mode="before")
    @classmethod
    def _complete(cls, values: Any) -> Any:
        if not isinstance(values, Mapping):
            return values
        known = shapes(cls)
        return {k: known[k].complete(v) if k in known else v for k, v in values.items()}

    def sets(self, *keys: str) -> bool:
        """True if one of the keys has another value than its default."""
        fields = type(self).model_fields
        return any(
            getattr(self, key) != fields[key].get_default(call_default_factory=True) for key in keys
        )

    def changed(self, values: Mapping[str, Any] | None = None, /, **keys: Any) -> Self:
        """A copy with other values, checked as those of a file are.

        A dotted key, ``{"kl.coef": 0.1}``, changes a value within a section and opens the section
        if it is null; a key without dots replaces what it names. (pydantic's ``model_copy`` takes
        unknown keys and wrong values silently.)
        """
        given = {**(values or {}), **keys}
        now = dict(self)
        return type(self).model_validate(
            {**self.below(now, given), **{k: _inner(now.get(k), v) for k, v in _grouped(given)}}
        )


def _grouped(given: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Each first name with its value, or with :class:`_Within` for the dotted keys below it."""
    dotted: dict[str, dict[str, Any]] = {}
    for key, value in given.items():
        head, dot, rest = key.partition(".")
        if dot:
            dotted.setdefault(head, {})[rest] = value
        else:
            yield key, value
    yield from ((head, _Within(values)) for head, values in dotted.items())


@dataclass(frozen=True, slots=True)
class _Within:
    values: Mapping[str, Any]


def _inner(before: Any, value: Any) -> Any:
    if not isinstance(value, _Within):
        return value
    if isinstance(before, Section):
        return _changed_variant(before, value.values)
    kept = dict(before) if isinstance(before, Mapping) else {}
    return kept | {key: _inner(kept.get(key), below) for key, below in _grouped(value.values)}


def _changed_variant(before: Section, values: Mapping[str, Any]) -> Any:
    """The section with other values, perhaps as another class of its union."""
    kind = getattr(before, "type", None)
    if values.get("type", kind) != kind:
        return {key: _inner(None, value) for key, value in _grouped(values)}
    if not before.variant:
        return before.changed(values)
    now = dict(before)
    return now | {key: _inner(now.get(key), value) for key, value in _grouped(values)}


class OwnPart(Section):
    """A part from a user's own code. Keys besides those of its kind are its settings."""

    model_config = ConfigDict(extra="allow")
    variant: ClassVar[str] = OWN
    type: str = Field(description="file.py:NAME, a dotted path, or an installed package's name")

    @field_validator("type")
    @classmethod
    def _names_a_function(cls, name: str) -> str:
        if name.endswith(".py"):
            raise ValueError(f"name the function of the file too: {name}:FUNCTION")
        return name

    @property
    def settings(self) -> dict[str, Any]:
        """Keyword arguments of the function that ``type`` names."""
        return dict(self.model_extra or {})


def is_own(name: str) -> bool:
    """True if a ``type`` names something in a user's own code."""
    return ":" in name or "." in name


def _one_text(c: Any) -> bool:
    return c.environment is not None and c.algorithm.advantage.per_step


class EnvironmentSection(Section):
    """Section ``environment``: one of the types that answer the policy between its turns.

    ``builder``: ``module:function`` with parameters config, engine, turns, family and media, which
    returns the engine that samples completions with it. ``rewards_turns``: a turn may have a reward
    of its own, beside that of the whole completion.
    """

    needs: ClassVar[tuple[Need, ...]] = (
        Need(
            ("environment", "algorithm.advantage.type"),
            _one_text,
            "process supervision reads a completion as one text; leave one of them out",
            (
                "environment.tools=[zoom]",
                "algorithm=process_grpo",
                "algorithm.advantage.step_rewards=a.py:f",
            ),
        ),
        Need(
            ("environment", "rollout.views"),
            lambda c: c.environment is not None and c.rollout.views is not None,
            "a tool would show the original; leave one of them out",
            ("environment.tools=[zoom]", "rollout.views.view=noise", "rollout.views.strength=0.5"),
        ),
        Need(
            ("environment", "rollout.stop"),
            lambda c: c.environment is not None and bool(c.rollout.stop),
            "a stop string could end a turn within a call; leave one of them out",
            ("environment.tools=[zoom]", "rollout.stop=[x]"),
        ),
    )

    builder: ClassVar[str]
    rewards_turns: ClassVar[bool] = False

    @property
    def specs(self) -> tuple[str, ...]:
        """Return the user's own files that it names, such as ``file.py:function``."""
        return ()


@dataclass(frozen=True, slots=True)
class Shape:
    """The sections that a field may hold.

    Attributes:
        variants: The classes by ``type``, or by ``variant``; one class for a plain section.
        by_type: The key ``type`` tells which.
        is_mapping: The field maps names to such sections.
    """

    variants: Mapping[str, type[Section]]
    by_type: bool
    is_mapping: bool

    @property
    def classes(self) -> tuple[type[Section], ...]:
        """All classes; the first is the default."""
        return tuple(self.variants.values())

    def section(self, values: Mapping[str, Any]) -> type[Section] | None:
        """The class for these values; None if there is none of their type."""
        return self.variants.get(self.kind(values)) or self.variants.get(OWN)

    def entry(self, name: str, value: Any) -> Any:
        """An entry of a mapping, written out; its type is its name where it has none."""
        value = self.expanded(value)
        if self.by_type and isinstance(value, Mapping) and "type" not in value:
            return {"type": name, **value}
        return value

    def kind(self, values: Mapping[str, Any]) -> str:
        """The name of the variant for these values, which may be unknown."""
        default = next(iter(self.variants))
        if len(self.variants) == 1 and not self.by_type:
            return default
        if self.by_type:
            return str(values.get("type", default))
        return self.classes[0].variant_of(values)

    def expanded(self, value: Any) -> Any:
        """Write out a short form of the section, or of one entry of a mapping."""
        if isinstance(value, str) and "${" in value:
            return value
        if self.by_type and isinstance(value, str):
            return {"type": value}
        return self.classes[0].expanded(value)

    def complete(self, value: Any) -> Any:
        """The value as pydantic reads it: written out, with its type."""
        if self.is_mapping:
            if not isinstance(value, Mapping):
                return value
            return {name: self.entry(str(name), entry) for name, entry in value.items()}
        return self._complete_one(value)

    def _complete_one(self, value: Any) -> Any:
        value = self.expanded(value)
        if self.by_type and isinstance(value, Mapping) and "type" not in value:
            return {"type": next(iter(self.variants)), **value}
        return value


@cache
def shapes(section: type[Section]) -> Mapping[str, Shape]:
    """The shapes of a section's fields that hold sections, by key."""
    found = {key: _shape(field.annotation) for key, field in section.model_fields.items()}
    return {key: shape for key, shape in found.items() if shape is not None}


def every_section(section: type[Section]) -> Iterator[type[Section]]:
    """Yield a section class and the classes of all sections within it."""
    yield section
    for shape in shapes(section).values():
        for inner in shape.classes:
            yield from every_section(inner)


def _shape(annotation: Any) -> Shape | None:
    is_mapping = get_origin(annotation) is dict
    classes = list(section_classes(get_args(annotation)[1] if is_mapping else annotation))
    if not classes:
        return None
    by_type = "type" in classes[0].model_fields
    named = {c.variant or (c.model_fields["type"].default if by_type else ""): c for c in classes}
    assert len(named) == len(classes), f"two variants have one name: {classes}"
    return Shape(named, by_type, is_mapping)


def section_classes(annotation: Any) -> Iterator[type[Section]]:
    """Yield the classes that a section class, or a union of them, stands for."""
    if get_origin(annotation) is Annotated:
        yield from section_classes(get_args(annotation)[0])
    elif get_origin(annotation) in (Union, UnionType):
        for argument in get_args(annotation):
            yield from section_classes(argument)
    elif isinstance(annotation, type) and issubclass(annotation, Section):
        yield annotation


def variant_in(value: Any) -> str | None:
    """The tag of a value for a union without ``type``: for pydantic's ``Discriminator``."""
    if isinstance(value, Section):
        return value.variant
    return None


def check_patterns(patterns: Iterable[str]) -> None:
    """Raises ValueError for an invalid regular expression."""
    for pattern in patterns:
        try:
            re.compile(pattern)
        except re.error as error:
            raise ValueError(f"'{pattern}' is not a regular expression: {error}") from None
