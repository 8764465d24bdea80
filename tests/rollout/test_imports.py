"""The files of ``mmr1/rollout`` import each other in one direction, lazy imports included."""

from __future__ import annotations

import ast
import subprocess
import sys
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

from tests.paths import REPOSITORY

FILES = sorted((REPOSITORY / "mmr1/rollout").glob("*.py"))
NEED_VLLM = {"vllm_transfer", "preloaded"}


def imported(file: Path) -> set[str]:
    """Modules of the package that a file names in an import, wherever it stands."""
    names = set()
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module:
            names |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
        elif isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
    return {name.removeprefix("mmr1.rollout.") for name in names if "mmr1.rollout." in name}


def test_no_file_imports_itself_by_way_of_others():
    known = {file.stem for file in FILES}
    tuple(TopologicalSorter({f.stem: imported(f) & known for f in FILES}).static_order())


@pytest.mark.slow
@pytest.mark.parametrize("name", [f.stem for f in FILES if f.stem not in NEED_VLLM])
def test_each_file_can_be_imported_alone(name):
    command = [sys.executable, "-c", f"import mmr1.rollout.{name}"]
    subprocess.run(command, cwd=REPOSITORY, check=True, timeout=120)
