"""Styles of reward functions: how a project writes them, and how such a function is called.

mmr1's own style and those of TRL, EasyR1 and verl are in ``mmr1.rewards.plugins.dialects``.
Packages declare others as entry points in the group ``mmr1.reward_styles``. A style is stated in
the configuration or recognised by the names of a function's parameters.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from types import ModuleType
from typing import Any, Literal

from mmr1.registry import REWARD_STYLES
from mmr1.rewards.item import RewardItem
from mmr1.rewards.plugins.values import TOTALS

Call = Literal["item", "group", "batch"]
Arguments = tuple[tuple[Any, ...], dict[str, Any]]
"""Positional and keyword arguments of a call."""


@dataclass(frozen=True, slots=True)
class Dialect:
    """A way to call a user's function.

    Attributes:
        name: Name of the project, for messages.
        call: Items of one call: one item; or those of one prompt, or all, and then it returns a
            value for each.
        arguments: Makes the arguments of a call from the items.
        skips: A None among its values is not a fault: the function is not for that row.
        totals: Keys of a returned mapping of which the first that is there holds the reward.
    """

    name: str
    call: Call
    arguments: Callable[[Sequence[RewardItem]], Arguments]
    skips: bool = False
    totals: tuple[str, ...] = TOTALS


@dataclass(frozen=True, slots=True)
class Signature:
    """Parameters by which a style is known.

    Attributes:
        required: Names of the parameters that such a function has at the least.
        dialect: Makes the dialect of a function, given the function and the options of the
            configuration; parameters of these names are not columns.
        of_class: It is the signature of a class whose objects are called. Functions have it only
            where the style is stated.
    """

    required: tuple[str, ...]
    dialect: Callable[[Callable[..., Any], Mapping[str, Any]], Dialect]
    of_class: bool = False


@dataclass(frozen=True, slots=True)
class RewardStyle:
    """How a project writes reward functions.

    Attributes:
        name: Name of the project, for messages.
        shown: The signatures as the project writes them, a line each, for messages.
        signatures: The signatures by which it is known.
        foreign: Remedy for each parameter of functions of the project that cannot be called here.
        packages: Remedy for each package that its files import, where it is not installed.
    """

    name: str
    shown: tuple[str, ...]
    signatures: tuple[Signature, ...]
    foreign: Mapping[str, str] = field(default_factory=dict)
    packages: Mapping[str, str] = field(default_factory=dict)


@cache
def reward_styles() -> dict[str, RewardStyle]:
    """Return the styles by the names that ``style`` has for them, mmr1's own ones first."""
    declared = sorted(REWARD_STYLES.names().keys() - REWARD_STYLES.builtin.keys())
    return {name: REWARD_STYLES.load(name) for name in (*REWARD_STYLES.builtin, *declared)}


def detect(
    function: Callable[..., Any],
    options: Mapping[str, Any],
    style: str | None = None,
    call: Call | None = None,
    of_class: bool = False,
) -> Dialect:
    """Return the dialect of a function.

    Args:
        function: The user's function.
        options: Keyword options of the configuration; parameters of these names are not columns.
        style: Name of the style; None: the names of its parameters tell.
        call: ``group`` or ``batch``, for a function that takes lists; None leaves its own way.
        of_class: The function is an object that was made of a class.

    Raises:
        ValueError: If its parameters are those of no style, or not of the ``style``; or if it takes
            one completion and a ``call`` is asked for.
    """
    parameters = inspect.signature(function).parameters.values()
    names = [p.name for p in parameters if p.kind not in (p.VAR_KEYWORD, p.VAR_POSITIONAL)]
    found = _recognised(names, of_class) if style is None else _stated(style, names)
    dialect = found.dialect(function, options)
    if call is None:
        return dialect
    if dialect.call == "item":
        raise ValueError(
            f"call: {call} is for functions that take lists; this one has the form of "
            f"{dialect.name}, one completion per call"
        )
    return replace(dialect, call=call)


def _stated(style: str, names: Sequence[str]) -> Signature:
    """Return the signature of a style that the function has."""
    known = (reward_styles().get(style) or REWARD_STYLES.load(style)).signatures
    if fitting := [each for each in known if set(each.required) <= set(names)]:
        return fitting[0]
    asked = " or ".join(", ".join(each.required) for each in known)
    shown = ", ".join(names) or "none"
    raise ValueError(f"style: {style} is for parameters {asked}; it has: {shown}")


def _recognised(names: Sequence[str], of_class: bool) -> Signature:
    """Return the signature that tells most of the parameters; a class's own come before others."""
    styles = reward_styles().values()
    fitting = [
        signature
        for style in styles
        for signature in style.signatures
        if set(signature.required) <= set(names) and (of_class or not signature.of_class)
    ]
    if fitting:
        # A single completion is mmr1's own way, whatever columns the function has besides.
        return max(fitting, key=lambda s: ("completion" in s.required, s.of_class, len(s.required)))
    foreign = {name: why for style in styles for name, why in style.foreign.items()}
    remedy = next((f": {why}" for name, why in foreign.items() if name in names), "")
    known = "\n".join(
        f"  {style.name if at == 0 else '':<10} {line}"
        for style in styles
        for at, line in enumerate(style.shown)
    )
    raise ValueError(
        f"its parameters ({', '.join(names) or 'none'}) are those of no known style{remedy}; known "
        f"are:\n{known}"
    )


def call(
    function: Callable[..., Any],
    dialect: Dialect,
    items: Sequence[RewardItem],
    options: Mapping[str, Any],
) -> Any:
    """Call the function on these items; returns a coroutine if it is async."""
    positional, keywords = dialect.arguments(items)
    return function(*positional, **{**keywords, **options})


def module_of(function: Callable[..., Any]) -> ModuleType | None:
    """Return the module in which a function, or the class of an object, is written."""
    code = function if inspect.isfunction(function) else type(function).__call__
    return inspect.getmodule(code)
