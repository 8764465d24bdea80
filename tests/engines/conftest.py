"""Fixtures of runs with an engine behind a server."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.trainer.conversations import write_scans
from tests.trainer.resumption import LENGTH_REWARD


@pytest.fixture(scope="module")
def files(tmp_path_factory) -> Path:
    """A folder with records, their pictures and a reward function."""
    folder = tmp_path_factory.mktemp("data")
    (folder / "length.py").write_text(LENGTH_REWARD)
    (folder / "accident").write_text("")
    write_scans(folder)
    return folder
