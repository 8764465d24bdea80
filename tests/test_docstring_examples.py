"""The examples in the docstrings run, every one of them."""

from __future__ import annotations

import doctest
import importlib
import re
from pathlib import Path

import pytest

from tests.paths import REPOSITORY

EXAMPLE = re.compile(r"^ *>>> ", re.MULTILINE)


def count_examples(path: Path) -> int:
    return len(EXAMPLE.findall(path.read_text(encoding="utf-8")))


def modules_with_examples() -> list[str]:
    """Found by reading, so that no optional package is needed to find them."""
    files = [
        p
        for package in ("mmr1", "mmr1_contrib", "datasets_prep")
        for p in (REPOSITORY / package).rglob("*.py")
    ]
    names = [p.relative_to(REPOSITORY).with_suffix("") for p in files if count_examples(p)]
    return sorted(".".join(name.parts) for name in names)


@pytest.mark.parametrize("name", modules_with_examples())
def test_the_examples_of_a_docstring_hold(name: str) -> None:
    module = importlib.import_module(name)
    results = doctest.testmod(module)
    assert results.failed == 0
    # An example that doctest does not see, in a nested function for instance, is never tried.
    assert module.__file__ is not None
    assert results.attempted == count_examples(Path(module.__file__))


def test_a_wrong_example_fails() -> None:
    wrong = doctest.DocTestParser().get_doctest(">>> 1 + 1\n3\n", {}, "wrong", None, 0)
    assert doctest.DocTestRunner(verbose=False).run(wrong, out=lambda text: None).failed == 1
