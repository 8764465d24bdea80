"""Which keys of another project's configuration change nothing in what comes out."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from mmr1_migrate.migration import Migration, Tree


def keys_without_effect(
    given: Tree, doubtful: Iterable[str], carried: Callable[[Tree], Migration]
) -> list[str]:
    """The keys that other keys make idle, such as the coefficient of a KL that is switched off.

    A key has an effect if the result is another one without it, or with another value.

    Args:
        given: Their keys by today's names, flat.
        doubtful: Those of them that may have no effect.
        carried: The result of such keys.
    """
    base = carried(given)

    def changes(keys: Tree) -> bool:
        try:
            result = carried(keys)
        except (ValueError, TypeError):  # a value that counts enough to be refused
            return True
        return (result.tree, result.notes) != (base.tree, base.notes)

    def has_effect(key: str) -> bool:
        without = {name: value for name, value in given.items() if name != key}
        return changes(without) or any(changes({**given, key: v}) for v in _others(given[key]))

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
