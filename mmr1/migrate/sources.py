"""The configurations of other projects that ``mmr1 migrate`` knows."""

from __future__ import annotations

from collections.abc import Sequence

from mmr1.migrate.easyr1 import EASYR1
from mmr1.migrate.source import Source
from mmr1.migrate.verl import VERL

SOURCES: tuple[Source, ...] = (EASYR1, VERL)
PROJECTS = tuple(dict.fromkeys(source.project for source in SOURCES))


def sources_of(project: str | None) -> Sequence[Source]:
    """Those of a project; all of them for None.

    Raises:
        ValueError: No such project.
    """
    if project is not None and project not in PROJECTS:
        raise ValueError(f"--from {project}: it can be one of {', '.join(PROJECTS)}")
    return [source for source in SOURCES if project in (None, source.project)]
