"""``scripts/dev/words.py``: habits of English are found, and no folder has more than its budget."""

from __future__ import annotations

import json
from pathlib import Path

from scripts.dev.words import BUDGETS, counts, lowered, over

SOURCE = '''\
"""What is read: those of the row."""


def own(name: str) -> str:
    """Of the row.

    Args:
        name: Of the row.

    Raises:
        ValueError: It is none.
    """
    raise ValueError("the row is none of these at all")  # words: ok


def read_row(name: str) -> str:
    """Return the text of a row.

    Args:
        name: Name of the row.

    Raises:
        ValueError: If the row has no text.
    """
    return name
'''


def test_habits_are_found_once_each(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text(SOURCE)
    (tmp_path / "a.md").write_text("The values are those of the row.\n\n```\nthose of code\n```\n")
    assert counts(tmp_path) == {
        "that-of": 2,
        "name": 1,
        "summary-start": 1,
        "field-start": 1,
        "raises-pronoun": 1,
        "is-none": 1,
    }


def test_no_folder_exceeds_its_budget() -> None:
    assert list(over(json.loads(BUDGETS.read_text()))) == []


def test_budgets_only_fall(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text(SOURCE)
    budgets = {str(tmp_path): {"name": 0, "that-of": 9}}
    assert any("1 of kind name, budget 0" in line for line in over(budgets))
    assert lowered(budgets)[str(tmp_path)]["name"] == 0
    assert lowered(budgets)[str(tmp_path)]["that-of"] == 1
