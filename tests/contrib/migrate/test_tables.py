"""The tables of docs/migration.md are those of the package, and name keys that exist."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys

import pytest

from mmr1.config import Config
from mmr1_contrib.migrate.sources import SOURCES
from tests.contrib.migrate.checks import ours_exists
from tests.paths import REPOSITORY


@pytest.mark.parametrize("source", SOURCES, ids=lambda source: source.title)
def test_the_lists_name_keys_that_exist(source):
    ours = [*source.renamed.values(), *(key for key, _ in source.translated.values())]
    ours += [key for name in source.known for key in source.ours(name)]
    assert [key for key in ours if not ours_exists(key)] == []
    assert set(source.defaults) <= {
        *source.renamed, *source.translated, *source.composed, *source.unneeded
    }  # fmt: skip


SECTIONS = "|".join(Config.model_fields)
OURS = re.compile(rf"(?<![\w./])(?:{SECTIONS})(?:\.[a-z_0-9]+)+")


@pytest.mark.parametrize("source", SOURCES, ids=lambda source: source.title)
def test_the_texts_of_the_lists_name_keys_that_exist(source):
    """Of ours; a text may name a key of theirs."""
    texts = [*source.unneeded.values(), *source.composed.values()]
    named = {key for text in texts for key in OURS.findall(text)}
    assert len(named) > 10
    known = {*source.known, *(key.rpartition(".")[2] for key in source.known)}
    assert [k for k in named if not ours_exists(k) and k not in known] == []


@pytest.mark.parametrize(
    "file", sorted((REPOSITORY / "mmr1_contrib/migrate").glob("*.py")), ids=str
)
def test_the_messages_name_keys_that_exist(file):
    """What is said of a key is a text in which words surround ours."""
    keys = {key for source in SOURCES for key in (*source.known, *source.older)}
    texts = [node.value for node in ast.walk(ast.parse(file.read_text()))
             if isinstance(node, ast.Constant) and isinstance(node.value, str)]  # fmt: skip
    named = {key for text in texts if " " in text for key in OURS.findall(text)}
    assert [key for key in named if not ours_exists(key) and key not in keys] == []


def test_the_page_names_keys_that_exist():
    page = (REPOSITORY / "docs/migration.md").read_text()
    tables = re.findall(r"\| (?:here|mmr1) \|\n\|[-|]+\n((?:\|.*\n)+)", page)
    rows = [row.rstrip(" |").rpartition(" | ")[2] for table in tables for row in table.splitlines()]
    keys = [key for row in rows for key in re.findall(r"`([a-z_.]+)(?:=[^`]*)?`", row)]
    assert len(keys) > 300
    for key in keys:
        assert ours_exists(key), key


def test_the_tables_are_those_of_the_package():
    check = [sys.executable, REPOSITORY / "scripts/dev/migration_table.py", "--check"]
    finished = subprocess.run(check, env={**os.environ, "PYTHONPATH": str(REPOSITORY)}, check=False)
    assert finished.returncode == 0, "run: python scripts/dev/migration_table.py"
