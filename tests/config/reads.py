"""Which keys a run reads: recorded in real runs of two steps in this process."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

from mmr1.config.commands import COMMANDS
from mmr1.section import Section

Reads = dict[tuple[str, str], set[str]]
"""The modules that read a key, by its class and field."""

# What looks at a key to refuse it, to copy, to print or to estimate it makes no use of it.
NO_USE = (
    "mmr1.config.checks",
    "mmr1.config.explain",
    "mmr1.config.file",
    "mmr1.section",
    "mmr1.config.secrets",
    "mmr1.estimate",
    "mmr1.trainer.preflight",
    *{target.partition(":")[0] for target in COMMANDS.names().values()},  # rows of commands
)


@contextmanager
def recorded_reads() -> Iterator[Reads]:
    """The keys that mmr1's modules read meanwhile, by whatever property of the configuration."""
    reads: Reads = {}

    def recording(self: Section, name: str) -> Any:
        if name in type(self).model_fields and (reader := _reader(sys._getframe(1))):
            reads.setdefault((type(self).__name__, name), set()).add(reader)
        return object.__getattribute__(self, name)

    Section.__getattribute__ = recording  # type: ignore[assignment,method-assign]
    try:
        yield reads
    finally:
        del Section.__getattribute__


def _reader(frame: FrameType | None) -> str | None:
    """The module for which the key is read, outside ``mmr1.config``; None if it makes no use."""
    while frame is not None:
        module = frame.f_globals.get("__name__", "")
        if module.startswith(NO_USE):
            return None
        if not module.startswith(("mmr1.config", "pydantic", "typing", "functools", __name__)):
            return module if module.startswith(("mmr1.", "mmr1_contrib.")) else None
        frame = frame.f_back
    return None
