"""``scripts/dev/mutations.py``: each mutant is one change of what a user can feel."""

from __future__ import annotations

import ast
import importlib
from types import ModuleType

import pytest

from tests.paths import REPOSITORY

CODE = b'''"""Of a documented module."""
from dataclasses import dataclass


@dataclass(frozen=True)
class Row:
    width: int = 4


def kept(values: list[int], low: int, strict: bool = True) -> list[int]:
    """Values from ``low`` on."""
    if not values:
        raise ValueError(f"no {1 + 1} values")
    assert low > 0, "only ours"
    found = [max(v, low) for v in values if v >= low and v != 7]
    found.sort(key=abs)
    return found[:-1]
'''


@pytest.fixture(scope="module")
def mutations() -> ModuleType:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(REPOSITORY / "scripts/dev"))
        return importlib.import_module("mutations")


def test_mutants_are_one_change_of_one_statement(mutations):
    """By hand: what a line may become. Docstrings, types, decorators, messages, assertions stay."""
    made = mutations.mutants("row.py", CODE)
    assert len({mutant.source for mutant in made}) == len(made)
    lines, found = CODE.decode().splitlines(), {}
    for mutant in made:
        ast.parse(mutant.source)
        before, after = mutant.change.partition(": ")[2].split(" => ")
        (number,) = (n for n, line in enumerate(lines, 1) if line.strip() == before)
        first, end = mutant.lines
        assert first <= number < end
        found.setdefault(number, set()).add(after)
    values = "found = [max(v, low) for v in values if v >= low and v != 7]"
    assert found == {
        7: {"width: int = 5"},
        10: {"def kept(values: list[int], low: int, strict: bool = False) -> list[int]:"},
        12: {"if True:", "if False:", "if (values):"},
        13: {"pass"},
        15: {
            values.replace("max", "(min").replace("low)", "low))", 1),
            values.replace("v >= low and v != 7", "(v >= low or v != 7)"),
            values.replace("v >= low and v != 7", "(v >= low)"),
            values.replace("v >= low", "(v > low)"),
            values.replace("v != 7", "(v == 7)"),
            values.replace("7", "8"),
        },
        16: {"pass", "(found.sort())"},
        17: {"return found[:-2]"},
    }


def test_lines_of_a_default_are_those_of_its_function(mutations):
    """They are executed at the import; the tests that call the function would feel the change."""
    lines = {m.change: m.lines for m in mutations.mutants("row.py", CODE)}
    (default,) = (span for change, span in lines.items() if "bool = False" in change)
    assert default == (10, 18)
    (of_class,) = (span for change, span in lines.items() if change.startswith("Row: "))
    assert of_class[0] <= 1
    assert of_class[1] > len(CODE.splitlines())
