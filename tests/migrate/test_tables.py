"""The tables of docs/migration.md are those of the package, and name keys that exist."""

from __future__ import annotations

import os
import re
import subprocess
import sys

import pytest

from mmr1_migrate.sources import SOURCES
from tests.migrate.checks import ours_exists
from tests.paths import REPOSITORY


@pytest.mark.parametrize("source", SOURCES, ids=lambda source: source.title)
def test_the_lists_name_keys_that_exist(source):
    ours = [*source.renamed.values(), *(key for key, _ in source.translated.values())]
    ours += [key for keys in source.loss_settings.values() for key in keys]
    assert [key for key in ours if not ours_exists(key)] == []
    assert set(source.loss_settings) <= set(source.known)
    assert set(source.defaults) <= {
        *source.renamed, *source.translated, *source.composed, *source.unneeded
    }  # fmt: skip


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
