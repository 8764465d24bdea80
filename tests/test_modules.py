"""What test modules share lies in modules of its own, or in a conftest file."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from tests.paths import REPOSITORY

MODULES = sorted((REPOSITORY / "tests").rglob("*.py"))


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(REPOSITORY)))
def test_no_module_imports_a_test_module(path: Path) -> None:
    imported = [
        node.module
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.ImportFrom) and node.module
    ]
    assert not [name for name in imported if name.rpartition(".")[2].startswith("test_")]
