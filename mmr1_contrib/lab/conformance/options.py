"""Options of pytest for the conformance of an engine; an entry point of ``pytest11``."""

from __future__ import annotations

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add ``--engine`` and ``--model``."""
    group = parser.getgroup("mmr1", "mmr1_contrib.lab.conformance")
    group.addoption("--engine", default="hf", help="rollout.engine: a name, package:Engine or file")
    group.addoption("--model", help="model folder, or its name on the Hub")
