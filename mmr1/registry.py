"""Extensions by name: built-in names, entry points, ``file.py:NAME`` and dotted paths.

A registry holds only strings, so that listing the names imports nothing.
"""

from __future__ import annotations

import difflib
import importlib
import importlib.util
import inspect
import sys
import warnings
from collections.abc import Callable, Mapping
from functools import lru_cache
from hashlib import sha256
from importlib.metadata import entry_points
from pathlib import Path
from types import ModuleType
from typing import Any


def suggest(name: str, names: Mapping[str, Any] | list[str]) -> str:
    """``" (did you mean 'x'?)"`` for the nearest of ``names``, or an empty string."""
    near = difflib.get_close_matches(name, list(names), n=1, cutoff=0.5)
    return f" (did you mean '{near[0]}'?)" if near else ""


def import_file(path: Path) -> ModuleType:
    """Import a Python file by its path, under a name that two files cannot share."""
    check_is_file(path)
    name = f"mmr1_user_{path.stem}_{sha256(str(path.resolve()).encode()).hexdigest()[:8]}"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        del sys.modules[name]
        raise ValueError(f"{path} cannot be imported: {type(error).__name__}: {error}") from error
    return module


@lru_cache
def _imported(path: Path, changed_ns: int) -> ModuleType:
    """The module of a file, imported again where the file has changed."""
    return import_file(path)


def check_settings(
    key: str, name: str, function: Callable[..., Any], settings: Mapping[str, Any], given: int = 0
) -> None:
    """Check the settings of a user's own part against the signature of its function.

    Args:
        given: How many arguments it gets before the settings.

    Raises:
        ValueError: If it does not take one, or needs one more.
    """
    signature = inspect.signature(function)
    try:
        signature.bind(*[None] * given, **settings)
    except TypeError as error:
        taken = ", ".join(list(signature.parameters)[given:]) or "none"
        raise ValueError(f"{key}.type={name}: {error}; its settings: {taken}") from error


def check_file(spec: str) -> None:
    """Check that the file of ``file.py:function`` is there; other names pass.

    Raises:
        ValueError: If the file is missing.
    """
    file = spec.rpartition(":")[0]
    if file.endswith(".py"):
        check_is_file(Path(file).expanduser())


def check_is_file(path: Path) -> None:
    """Raises ValueError unless it is a file."""
    if not path.is_file():
        kind = "Python file" if path.suffix == ".py" else "file"
        raise ValueError(f"{path}: no such {kind}")


@lru_cache
def _installed(path: tuple[str, ...]) -> Any:
    """The entry points of all packages on this path; finding them reads many files.

    Its type is another one in Python 3.11 than from 3.12 on; both have ``select``.
    """
    return entry_points()


def _entry_points(group: str, path: tuple[str, ...]) -> dict[str, str]:
    """The entry points of a group, by name."""
    return {point.name: point.value for point in _installed(path).select(group=group)}


def reinstall(group: str | None, name: str) -> str:
    """Say what to do about an entry point that the code of its package no longer has."""
    point = next(iter(_installed(tuple(sys.path)).select(group=group, name=name)))
    package = "its package" if point.dist is None else point.dist.name
    return (
        f"the entry points of {package} are not those of its code: install it again (in a checkout "
        "of mmr1: scripts/setup_env.sh)"
    )


@lru_cache
def _is_installed(target: str) -> bool:
    """True if the package of an entry point can be found; its files may have been deleted."""
    return importlib.util.find_spec(target.partition(":")[0].partition(".")[0]) is not None


class Registry:
    """Names of one kind of object, imported when loaded.

    A file is imported once, whatever is loaded from it, so all of it shares the file's variables.

    >>> colours = Registry("colour", {"red": "colorsys:rgb_to_hsv"})
    >>> colours.load("red").__name__
    'rgb_to_hsv'
    >>> colours.load("rad")
    Traceback (most recent call last):
    ...
    ValueError: unknown colour 'rad' (did you mean 'red'?); known: red; or name a file.py:function
    """

    def __init__(
        self,
        kind: str,
        builtin: Mapping[str, str],
        group: str | None = None,
        attribute: str = "function",
    ) -> None:
        self.kind = kind
        self.builtin = dict(builtin)
        self.group = group
        self._attribute_word = attribute

    def names(self) -> dict[str, str]:
        """Return every name and its target, with the entry points of packages that are there."""
        plugins = {name: at for name, at in self._plugins().items() if _is_installed(at)}
        return {**plugins, **self.builtin}

    def _plugins(self) -> dict[str, str]:
        return _entry_points(self.group, tuple(sys.path)) if self.group else {}

    def load(self, spec: str) -> Any:
        """The object behind a name, ``pkg.module:attr``, ``pkg.module.attr`` or ``file.py:attr``.

        Raises:
            ValueError: The name is unknown, the file is missing or the attribute is not there.
        """
        try:
            return self._attribute(*self._target(spec))
        except ValueError as error:
            if spec in self.builtin or spec not in self._plugins():
                raise
            raise ValueError(f"{error}; {reinstall(self.group, spec)}") from error

    def check(self, spec: str) -> None:
        """Check a name without importing anything.

        Raises:
            ValueError: If the name is neither registered nor a path to an attribute.
        """
        self._target(spec)

    def _target(self, spec: str) -> tuple[str, str]:
        """The module (or file) and the attribute behind a name."""
        # The plugins of all installed packages take a while to find.
        names = self.builtin if spec in self.builtin else {**self._plugins(), **self.builtin}
        target = names.get(spec, spec)
        module_name, separator, attribute = target.rpartition(":")
        if not separator:
            if target.endswith(".py"):
                word = self._attribute_word
                raise ValueError(f"{target}: name the {word} too, as in {target}:{word}")
            module_name, _, attribute = target.rpartition(".")
        if not module_name:
            raise ValueError(
                f"unknown {self.kind} '{spec}'{suggest(spec, names)}; "
                f"known: {', '.join(sorted(names))}; "
                f"or name a file.py:{self._attribute_word}"
            )
        return module_name, attribute

    def _attribute(self, module_name: str, attribute: str) -> Any:
        if module_name.endswith(".py"):
            return _of_file(Path(module_name).expanduser(), attribute)
        try:
            module = importlib.import_module(module_name)
        except ImportError as error:
            raise ValueError(f"{self.kind} '{module_name}:{attribute}': {error}") from error
        return _inside(module, module_name, attribute)


def _of_file(path: Path, attribute: str) -> Any:
    """An attribute of a file; if a package is missing for its import, only the needed part."""
    check_is_file(path)
    try:
        module = _imported(path.resolve(), path.stat().st_mtime_ns)
    except ValueError as error:
        if not isinstance(error.__cause__, ImportError):
            raise
        return _part(path.resolve(), path.stat().st_mtime_ns, attribute, error)
    return _inside(module, str(path), attribute)


@lru_cache
def _part(path: Path, changed_ns: int, attribute: str, error: ValueError) -> Any:
    from mmr1.pieces import function

    try:
        part = function(path, attribute)
    except ValueError as alone:
        raise ValueError(f"{error}; {attribute} alone: {alone}") from error.__cause__
    warnings.warn(
        f"{error.args[0]}; only what {attribute} needs of it is run", RuntimeWarning, stacklevel=2
    )
    return part


def _inside(module: Any, name: str, attribute: str) -> Any:
    """The attribute ``a.b`` of a module."""
    for part in attribute.split("."):
        if not hasattr(module, part):
            public = [n for n in vars(module) if not n.startswith("_")]
            raise ValueError(f"{name} has no '{attribute}'{suggest(attribute, public)}")
        module = getattr(module, part)
    return module


REWARD_STYLES = Registry(
    "reward style",
    {
        name: f"mmr1.rewards.plugins.dialects:{name.upper()}"
        for name in ("mmr1", "trl", "easyr1", "verl")
    },
    group="mmr1.reward_styles",
    attribute="STYLE",
)
"""Each is an ``mmr1.rewards.plugins.styles.RewardStyle``."""

TRACKERS = Registry(
    "tracker",
    {
        name: f"mmr1.trainer.runs.trackers.{name}:start"
        for name in ("tensorboard", "wandb", "mlflow", "swanlab", "trackio")
    },
    group="mmr1.trackers",
)
"""Each is a function that starts an ``mmr1.trainer.runs.tracking.Tracker``.

A built-in one needs the package of its name, which the extra of its name installs.
"""
