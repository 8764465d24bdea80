"""Credentials in a configuration: find them, and write references or masks instead.

What the configuration takes from the environment is written as that reference, whatever its key is
called. Not so a path that is there, and what only allows certain values, as numbers and choices do:
these are not credentials, and a run that is resumed compares them.

A value given in clear is a credential by its key (``headers``, ``token``, ``api_key``,
``password``, ``secret``, ``authorization``, and names that end in them), or by ``user:password@``
or ``?token=...`` in a URL. It is written as ``***``.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from copy import deepcopy
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException
from pydantic import ValidationError

MASK = "***"
REMEDY = "write ${oc.env:NAME} in its place, and set NAME in the environment"

Key = tuple[str | int, ...]
"""The names and indices that lead to a value."""

_WORDS = (
    r"(headers?|token|password|passwd|pwd|passphrase|secrets?|auth|authorization|credentials?"
    r"|cookies?|signature|(api|access|secret|private|auth)[_-]?key)"
)
_SECRET_NAME = re.compile(rf"(^|[_-]){_WORDS}$", re.IGNORECASE)
_SECRET_VARIABLE = re.compile(rf"(^|_){_WORDS}(_|$)", re.IGNORECASE)
_CAMEL = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")
_VARIABLE = re.compile(r"\$\{\s*oc\.env\s*:\s*([^},\s]+)\s*(,[^}]*)?\}")
_VARIABLE_BEGINS = re.compile(r"\$\{\s*oc\.env\s*:")
_MARK = re.compile("ENVIRONMENT([0-9]+)REFERENCE")
_REFERENCE = re.compile(r"\$\{[^}]+\}")
_USER_INFO = re.compile(r"(?<=://)[^/\s]*(?=@)")
_PARAMETER = re.compile(r"(?<=[?&])([^=&#\s]+)=([^&#\s,]+)")


def redact(tree: Any, references: Mapping[Key, str] | None = None, path: Key = ()) -> Any:
    """The tree in a form that may be written: references in place of credentials, or ``***``.

    Args:
        tree: Mappings, lists and values.
        references: Values that the configuration file has at a key, by :func:`find_references`.
        path: Where the tree is in the whole configuration.
    """
    if references and path in references:
        return references[path]
    if isinstance(tree, Mapping):
        return {key: redact(value, references, (*path, key)) for key, value in tree.items()}
    if isinstance(tree, list | tuple):
        return [redact(value, references, (*path, i)) for i, value in enumerate(tree)]
    if _is_secret(path) and tree not in (None, "") and not isinstance(tree, bool):
        return tree if is_reference(tree) else MASK
    return mask_text(tree) if isinstance(tree, str) else tree


def mask_text(text: str) -> str:
    """The text with the credentials of its URLs masked; references stay."""
    return _PARAMETER.sub(_masked_parameter, _USER_INFO.sub(_masked_user_info, text))


def find_references(raw: Any, resolved: Any, path: Key = ()) -> dict[Key, str]:
    """References to the environment and to credentials, as the configuration writes them.

    Of ``${oc.env:NAME,default}`` the default is written only where NAME is not set and the value is
    not a credential.

    Args:
        raw: The tree by :func:`resolved_but_for_environment`.
        resolved: The same tree without interpolations.
        path: Where the two are in the whole configuration.
    """
    children: Iterable[tuple[str | int, Any, Any]] = ()
    if isinstance(raw, Mapping) and isinstance(resolved, Mapping):
        children = [(key, raw.get(key), value) for key, value in resolved.items()]
    elif isinstance(raw, list) and isinstance(resolved, list):
        children = zip(range(len(raw)), raw, resolved, strict=True)
    elif isinstance(raw, str) and isinstance(resolved, str) and is_reference(raw):
        is_credential = (
            _is_secret(path) or mask_text(resolved) != resolved or _names_secret_variable(raw)
        )

        def reference(variable: re.Match[str]) -> str:
            name, default = variable[1], variable[2]
            as_default = default is not None and name not in os.environ and not is_credential
            return default[1:].strip() if as_default else f"${{oc.env:{name}}}"

        written = mask_text(_VARIABLE.sub(reference, raw))
        from_environment = _VARIABLE.search(written) is not None and not _is_there(resolved)
        return {path: written} if is_credential or from_environment else {}
    references: dict[Key, str] = {}
    for key, below, value in children:
        references |= find_references(below, value, (*path, key))
    if path == ():
        return {k: text for k, text in references.items() if _may_be_any_text(resolved, k, text)}
    return references


def resolved_but_for_environment(raw: Any) -> Any:
    """The tree with its references to the environment kept, also those through other keys.

    ``b: ${.a}`` has in it what ``a: ${oc.env:NAME}`` has. Where such a tree cannot be resolved,
    it is returned as it is.
    """
    taken: list[str] = []
    marked = _each_text(raw, lambda text: _with_marks(text, taken))
    try:
        resolved = OmegaConf.to_container(OmegaConf.create(marked), resolve=True)
    except (OmegaConfBaseException, ValueError, TypeError):
        return raw  # such as a key whose name is in the environment
    return _each_text(resolved, lambda text: _MARK.sub(lambda mark: taken[int(mark[1])], text))


def _each_text(tree: Any, change: Callable[[str], str]) -> Any:
    if isinstance(tree, Mapping):
        return {key: _each_text(value, change) for key, value in tree.items()}
    if isinstance(tree, list):
        return [_each_text(value, change) for value in tree]
    return change(tree) if isinstance(tree, str) else tree


def _with_marks(text: str, taken: list[str]) -> str:
    """Put a mark in the place of each ``${oc.env:...}``, which is added to ``taken``."""
    begin = _VARIABLE_BEGINS.search(text)
    if begin is None:
        return text
    end = begin.end()
    depth = 1
    while depth and end < len(text):
        depth += {"{": 1, "}": -1}.get(text[end], 0)
        end += 1
    mark = f"ENVIRONMENT{len(taken)}REFERENCE"
    taken.append(text[begin.start() : end])
    return text[: begin.start()] + mark + _with_marks(text[end:], taken)


def _is_there(text: str) -> bool:
    try:
        return Path(text).expanduser().exists()
    except (OSError, ValueError, RuntimeError):  # too long, a NUL byte, no such user
        return False


def _may_be_any_text(tree: Any, path: Key, reference: str) -> bool:
    """True if the configuration is also valid with the reference in place of the value."""
    from mmr1.config import Config  # which masks with this module

    changed = deepcopy(tree)
    below = changed
    for name in path[:-1]:
        below = below[name]
    below[path[-1]] = reference
    try:
        Config.model_validate(changed)
    except ValidationError as error:
        return not any(_is_at(path, problem["loc"]) for problem in error.errors())
    return True


def _is_at(path: Key, place: tuple[int | str, ...]) -> bool:
    """True if an error's place, which also names types on the way, is at the path."""
    rest = iter(place)
    return all(name in rest for name in path)


def masked_keys(tree: Any, path: Key = ()) -> list[str]:
    """The keys at which a redacted tree has ``***`` instead of a credential."""
    return [".".join(map(str, key)) for key, value in _leaves(tree, path) if _is_masked(key, value)]


def secret_keys(tree: Any, path: Key = ()) -> list[str]:
    """The keys of a redacted tree that have ``***`` or a reference to a credential."""
    masked = masked_keys(tree, path)
    return masked + [
        ".".join(map(str, key)) for key, value in _leaves(tree, path) if is_reference(value)
    ]


def is_same(before: Any, now: Any) -> bool:
    """True if two redacted trees are equal; a credential equals whatever replaces it."""
    if isinstance(before, Mapping) and isinstance(now, Mapping):
        return before.keys() == now.keys() and all(is_same(before[k], now[k]) for k in before)
    if isinstance(before, list) and isinstance(now, list):
        return len(before) == len(now) and all(map(is_same, before, now))
    if before is None or now is None or before == now:
        return bool(before == now)
    shapes = [_shape(value) if isinstance(value, str) else value for value in (before, now)]
    return MASK in shapes or shapes[0] == shapes[1]


def is_reference(value: Any) -> bool:
    """True if the text takes something from the environment or from another key."""
    return isinstance(value, str) and _REFERENCE.search(value) is not None


def _shape(text: str) -> str:
    """The text without its credentials, in clear or not."""
    return _REFERENCE.sub(MASK, _USER_INFO.sub(MASK, text))


def _is_masked(path: Key, value: Any) -> bool:
    if not isinstance(value, str):
        return False
    return (_is_secret(path) and value == MASK) or f"://{MASK}@" in value or f"={MASK}" in value


def _leaves(tree: Any, path: Key) -> Iterator[tuple[Key, Any]]:
    if isinstance(tree, Mapping):
        for key, value in tree.items():
            yield from _leaves(value, (*path, key))
    elif isinstance(tree, list | tuple):
        for index, value in enumerate(tree):
            yield from _leaves(value, (*path, index))
    else:
        yield path, tree


def _is_secret(path: Key) -> bool:
    """True if a key on the path is the name of a credential; names chosen by users do not count."""
    if path[:2] == ("data", "train"):
        return False
    names = path[2:] if path[:1] == ("rewards",) else path
    return any(isinstance(name, str) and _is_secret_name(name) for name in names)


def _is_secret_name(name: str) -> bool:
    return _SECRET_NAME.search(_CAMEL.sub("_", name)) is not None


def _names_secret_variable(raw: str) -> bool:
    return any(_SECRET_VARIABLE.search(match[1]) for match in _VARIABLE.finditer(raw))


def _masked_user_info(match: re.Match[str]) -> str:
    """Mask ``user:password`` except for the name of the user."""
    user, colon, password = _VARIABLE.sub("", match[0]).partition(":")
    is_clear = bool(password) or not is_reference(match[0]) or (bool(user) and not colon)
    return MASK if is_clear else match[0]


def _masked_parameter(match: re.Match[str]) -> str:
    name, value = match[1], match[2]
    is_credential = name.lower() in ("key", "sig") or _is_secret_name(name)
    return f"{name}={MASK}" if is_credential and not is_reference(value) else match[0]
