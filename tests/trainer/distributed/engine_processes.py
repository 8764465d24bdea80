"""Processes of engines on Ray."""

from __future__ import annotations

import psutil


def processes() -> list[psutil.Process]:
    """The engines of this test, the oldest first."""
    family = psutil.Process().children(recursive=True)
    return sorted((p for p in family if "Engine" in p.name()), key=lambda p: p.create_time())
