"""Parts: what people add. One file is one part, and a decorator states all facts about it.

A part is a function of its settings, the same in a user's own file and in this package. The
decorator gives it a name. From its signature and docstring follow the section of the
configuration, the refusals with their remedies, the entry of ``mmr1 list`` and its row in the
documentation.
"""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import pkgutil
import re
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cache, cached_property, partial
from pkgutil import resolve_name
from typing import Annotated, Any, Literal, TypeVar, Union

from pydantic import Discriminator, Field, Tag, ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails

from mmr1.registry import Registry, check_settings, suggest
from mmr1.section import Need, OwnPart, Section, is_own

Declared = TypeVar("Declared", bound=Callable[..., Any])


@dataclass(frozen=True, slots=True)
class Part:
    """One part.

    Attributes:
        key: Key of the configuration that chooses it.
        name: Its value there, the key ``type``.
        section: Section class with its settings.
        build: Returns the part for a section and the inputs of the kind.
        declared: What the decorator stands on, a function or a section class; None for a user's
            own that has no decorator.
        papers: arXiv numbers, or an author and a year.
        package: Package that it needs. Empty if it needs none.
        extras: Extras of mmr1 that install that package.
        example: Inputs and expected outputs, worked by hand. Empty if there is none.
    """

    key: str
    name: str
    section: type[Section]
    build: Callable[..., Any]
    declared: Any = None
    papers: tuple[str, ...] = ()
    package: str = ""
    extras: tuple[str, ...] = ()
    example: Mapping[str, Any] = field(default_factory=dict)


class Kind:
    """One kind of part: the decorator of its parts, and their lookup by name.

    Attributes:
        key: Key of the configuration that chooses one.
        package: Package whose modules are the parts.
        base: Section class that a part's section extends, unless the part names another.
        own: Section class of a user's own part.
        default: Name of the part that applies where the configuration names none.
        makes: Class of what a part builds, as ``module:class``. Empty if any object will do.
        inputs: Values that a part is given beside its settings when it is built: its first
            parameters.
        called: A part is the function itself, called with what stands before ``*`` in its
            signature; its settings stand behind.
        word: Name of the kind, for messages and for its entry points. Empty if it is the last name
            of the key.
    """

    def __init__(
        self,
        key: str,
        package: str,
        base: type[Section],
        own: type[OwnPart],
        default: str,
        makes: str = "",
        inputs: tuple[str, ...] = (),
        called: bool = False,
        word: str = "",
    ) -> None:
        self.key, self.package, self.base, self.own = key, package, base, own
        self.default, self.makes, self.inputs, self.called = default, makes, inputs, called
        self._parts: dict[str, Part] = {}
        group = f"{word}s" if word else package.rpartition(".")[2]
        self.installed = Registry(word or key.rpartition(".")[2], {}, group=f"mmr1.{group}")

    def __call__(
        self,
        name: str,
        *,
        paper: str | tuple[str, ...] = (),
        needs: tuple[Need, ...] = (),
        section: type[Section] | None = None,
        base: type[Section] | None = None,
        body: str = "",
        package: str = "",
        extras: tuple[str, ...] = (),
        example: Mapping[str, Any] | None = None,
        **facts: Any,
    ) -> Callable[[Declared], Declared]:
        """Declare a function of its settings as a part, or the section of one with a ``body``.

        Args:
            name: Name in the configuration.
            paper: Where its formula is from.
            needs: Needs of the part towards the rest of the configuration.
            section: Section class, where other code reads the settings. The function then takes
                the section; otherwise it takes the settings.
            base: Section class to extend in place of the kind's.
            body: Function that makes the part of its section, as ``module:function``, loaded when
                it is built. What is declared is then the section class.
            package: Package that it needs, if any.
            extras: Extras of mmr1 that install that package.
            example: Inputs and expected outputs, for the test of all examples.
            facts: Values of the base's class variables, or other defaults of its keys.
        """
        papers = (paper,) if isinstance(paper, str) else paper

        def declare(declared: Declared) -> Declared:
            made: Any = declared if body else section
            if made is None:
                made = section_of(
                    declared, name, base or self.base, facts, self._settings(declared)
                )
                self._refuse_taken(declared)
            made.needs = (*made.needs, *needs)
            if body:
                build = _from_body(body)
            elif self.called:
                build = _bound(declared, self._settings(declared))
            else:
                build = declared if section else _from_settings(declared, self._settings(declared))
            part = Part(
                self.key, name, made, build, declared, papers, package, extras, example or {}
            )
            if declared.__module__.startswith(f"{self.package}."):
                assert name not in self._parts, f"two parts of {self.key} have the name {name}"
                self._parts[name] = part
            setattr(declared, "part", part)  # noqa: B010  mypy knows no such attribute
            return declared

        return declare

    def _settings(self, function: Callable[..., Any]) -> list[str]:
        """Return the names of the parameters that are settings."""
        parameters = inspect.signature(function).parameters.values()
        if self.called:
            return [p.name for p in parameters if p.kind is p.KEYWORD_ONLY]
        return [p.name for p in parameters][len(self.inputs) :]

    def _refuse_taken(self, function: Callable[..., Any]) -> None:
        """Raise ValueError for a setting with the name of a key that all parts of the kind have."""
        taken = {*self.base.model_fields, *self.own.model_fields} & {*self._settings(function)}
        if self.called and taken:
            raise ValueError(
                f"{function.__module__}.{function.__name__}: its setting {min(taken)} has the name "
                f"of a key of every {self.installed.kind}; give it another"
            )

    @cached_property
    def parts(self) -> Mapping[str, Part]:
        """The parts of the package by name; the default is the first."""
        for module in pkgutil.iter_modules(importlib.import_module(self.package).__path__):
            importlib.import_module(f"{self.package}.{module.name}")
        return dict(sorted(self._parts.items(), key=lambda p: (p[0] != self.default, p[0])))

    def first(self) -> Any:
        """Return the section of the default part."""
        return self.parts[self.default].section()

    def union(self) -> Any:
        """Return the type of the key: a section of any part, told apart by ``type``."""
        sections = {name: part.section for name, part in self.parts.items()}
        return union_of(sections, self.own, self.installed)

    def part_of(self, section: Any) -> Part:
        """Return the part that a section is for; a user's own is loaded.

        Raises:
            ValueError: If a user's own part cannot be loaded, or has other settings.
        """
        if not isinstance(section, OwnPart):
            return self.parts[section.type]
        function = self.installed.load(section.type)
        declared = getattr(function, "part", None)
        if declared is not None:
            part: Part = replace(declared, key=self.key, name=section.type)
            return part
        if not callable(function):
            raise ValueError(
                f"{self.key}.type={section.type} is a {type(function).__name__}; it must be a "
                "function or a class"
            )
        check_settings(self.key, section.type, function, section.settings, len(self.inputs))
        return Part(self.key, section.type, type(section), _from_own_settings(function))

    def resolved(self, section: Any) -> Any:
        """Return the section with the facts and the typed settings of a user's own declared part.

        Raises:
            ValueError: If it cannot be loaded, or a setting is wrong.
        """
        if not isinstance(section, OwnPart):
            return section
        cls = self.part_of(section).section
        if cls is type(section):
            return section
        given = {key: getattr(section, key) for key in section.model_fields_set}
        given = {k: v for k, v in given.items() if k in cls.model_fields or k in section.settings}
        try:
            return cls.model_validate({**given, "type": cls.model_fields["type"].default})
        except ValidationError as error:
            lines = [_wrong_setting(each, cls) for each in error.errors()]
            raise ValueError(f"{self.key}.type={section.type}: {'; '.join(lines)}") from error

    def build(self, section: Any, *inputs: Any) -> Any:
        """Return what the section's part makes of the inputs of the kind.

        Raises:
            ValueError: If a user's own part cannot be loaded, or makes something else.
        """
        made = self.part_of(section).build(self.resolved(section), *inputs)
        if self.makes and not isinstance(made, resolve_name(self.makes)):
            module, _, name = self.makes.partition(":")
            raise ValueError(
                f"{self.key}.type={section.type} returned {type(made).__name__}; it must return an "
                f"{module.rpartition('.')[0]}.{name}"
            )
        return made

    def require(self, section: Any) -> None:
        """Check that the package of a section's part is installed.

        Raises:
            ValueError: If it is not, or if a user's own part cannot be loaded.
        """
        part = self.part_of(section)
        if part.package and importlib.util.find_spec(part.package) is None:
            names = [f"'mmr1[{extra}]'" for extra in part.extras] or [part.package]
            raise ValueError(
                f"{self.key}={part.name} needs the package {part.package}, "
                f"which is not installed; pip install {' or '.join(names)}, or choose another"
            )

    def table(self) -> list[tuple[str, str, str, str]]:
        """Return a row for each part: name, first sentence, keys with defaults, papers."""
        return [
            (
                name,
                part.section.__doc__ or "",
                ", ".join(setting_names(part)),
                ", ".join(part.papers),
            )
            for name, part in self.parts.items()
        ]


def _wrong_setting(error: ErrorDetails, section: type[Section]) -> str:
    """Return one line on a setting of a user's own part."""
    key = ".".join(map(str, error["loc"]))
    if error["type"] == "extra_forbidden":
        return f"it has no setting '{key}'{suggest(key, [*section.model_fields])}"
    return f"'{key}': {error['msg']}"


def union_of(sections: Mapping[str, type[Section]], own: type[OwnPart], names: Registry) -> Any:
    """Return the type of a key with parts: one of these sections, told apart by ``type``.

    Args:
        sections: The sections by ``type``; the first is the default.
        own: Section of a part from a user's own code.
        names: Parts of installed packages.
    """

    def tag(value: Any) -> str:
        given = value.get("type") if isinstance(value, Mapping) else getattr(value, "type", None)
        name = next(iter(sections)) if given is None else str(given)
        is_known = name in sections or not (is_own(name) or name in names.names())
        return name if is_known else OwnPart.variant

    tagged = [Annotated[section, Tag(name)] for name, section in sections.items()]
    return Annotated[Union[(*tagged, Annotated[own, Tag(OwnPart.variant)])], Discriminator(tag)]


def setting_names(part: Part) -> list[str]:
    """Return the keys of a part, each with its default if it has one."""
    settings = {k: f for k, f in part.section.model_fields.items() if k != "type"}
    return [
        k if f.is_required() else f"{k}={written(f.get_default(call_default_factory=True)):.40}"
        for k, f in settings.items()
    ]


def written(value: Any) -> str:
    """Return a value as a configuration file writes it."""
    if value is None:
        return "null"
    return str(value).lower() if isinstance(value, bool) else str(value)


def section_of(
    function: Callable[..., Any],
    name: str,
    base: type[Section],
    facts: Mapping[str, Any],
    settings: list[str],
) -> type[Section]:
    """Return the section class of a function's ``settings``, which are parameters of it.

    Keys, types and defaults are those of its signature, and descriptions those of ``Args`` in its
    docstring, or of the types themselves. ``facts`` are class variables or defaults of ``base``.
    """
    first, descriptions = _documented(function)
    module = sys.modules[function.__module__]
    annotations: dict[str, Any] = {"type": Literal[name]}
    values: dict[str, Any] = {"type": name, "__doc__": first, "__module__": module.__name__}
    parameters = inspect.signature(function).parameters
    for key in settings:
        parameter, annotation = parameters[key], parameters[key].annotation
        if isinstance(annotation, str):
            annotation = eval(annotation, vars(module))
        text = descriptions.get(key) or _described(annotation)
        if not text:
            raise ValueError(
                f"{module.__name__}.{function.__name__}: describe {key} under Args in its docstring"
            )
        required = parameter.default is inspect.Parameter.empty
        annotations[key] = annotation
        values[key] = Field(
            **({} if required else {"default": parameter.default}), description=text
        )
    for key, value in facts.items():
        known = base.model_fields.get(key)
        if known is None and not hasattr(base, key):
            raise ValueError(f"{module.__name__}.{function.__name__}: {key} is no fact or key")
        values[key] = value
        if known is not None:
            annotations[key] = known.annotation
            values[key] = Field(value, description=known.description)
    title = f"{name.title().replace('_', '')}Section"
    make: Any = type(base)  # pydantic's metaclass
    made: type[Section] = make(title, (base,), {**values, "__annotations__": annotations})
    setattr(module, title, made)  # where pickle looks for it
    return made


def _from_body(path: str) -> Callable[..., Any]:
    return lambda section, *inputs: resolve_name(path)(section, *inputs)


def _from_settings(function: Callable[..., Any], keys: list[str]) -> Callable[..., Any]:
    return lambda section, *inputs: function(*inputs, **{k: getattr(section, k) for k in keys})


def _bound(function: Callable[..., Any], keys: list[str]) -> Callable[..., Any]:
    return lambda section, *inputs: partial(function, **{k: getattr(section, k) for k in keys})


def _from_own_settings(function: Callable[..., Any]) -> Callable[..., Any]:
    return lambda section, *inputs: function(*inputs, **section.settings)


def _described(annotation: Any) -> str:
    found = [m for m in getattr(annotation, "__metadata__", ()) if isinstance(m, FieldInfo)]
    return next((m.description for m in found if m.description), "")


@cache
def _documented(function: Callable[..., Any]) -> tuple[str, dict[str, str]]:
    """Return the first line of a docstring, and its description of each argument."""
    doc = inspect.getdoc(function) or ""
    arguments = re.search(r"^Args:\n((?:    .*\n?|\n)*)", doc, re.MULTILINE)
    text = arguments[1] if arguments else ""
    entries = re.findall(r"^    (\w+): (.*(?:\n {8}.*)*)", text, re.MULTILINE)
    return doc.partition("\n")[0], {k: re.sub(r"\s+", " ", v).rstrip(".") for k, v in entries}
