"""``docs/validation.md``: the tests that it names exist."""

from __future__ import annotations

import ast
import importlib
import re

import pytest

from tests.paths import REPOSITORY

PAGE = (REPOSITORY / "docs/validation.md").read_text()
TABLE = PAGE.split("| fault | what happens |")[1].split("\n#")[0]
ROWS = [line for line in TABLE.splitlines() if line[:2] == "| "]


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.split(" | ")[0].strip("| "))
def test_the_test_of_a_fault_exists(row):
    named = re.search(r"`(tests/[\w/]+\.py)::(test_\w+)` \|$", row)
    assert named, "the last column names a test"
    file, test = named.groups()
    tree = ast.parse((REPOSITORY / file).read_text())
    assert test in {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}


def test_the_script_runs_each_row_and_prints_what_held(monkeypatch, capsys):
    """One row of them, with its real test."""
    monkeypatch.syspath_prepend(REPOSITORY / "scripts/dev")
    script = importlib.import_module("faults")
    assert [f.name for f in script.faults()] == [r.split(" | ")[0].strip("| ") for r in ROWS]
    with pytest.raises(SystemExit) as ended:
        script.main(["--quick", "lone surrogate"])
    assert ended.value.code == 0
    shown = capsys.readouterr().out.splitlines()
    assert max(map(len, shown)) <= 80
    assert "held" in "".join(shown)
