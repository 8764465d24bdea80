"""The configurations of other projects that ``mmr1 migrate`` knows."""

from __future__ import annotations

from collections.abc import Sequence

from mmr1_contrib.migrate.easyr1 import EASYR1
from mmr1_contrib.migrate.openrlhf import LMM_R1, OPENRLHF
from mmr1_contrib.migrate.r1v import FORKS
from mmr1_contrib.migrate.source import Source
from mmr1_contrib.migrate.trl import GRPO, RLOO
from mmr1_contrib.migrate.trl_offline import DPO, SFT
from mmr1_contrib.migrate.verl import VERL

SOURCES: tuple[Source, ...] = (
    EASYR1, VERL, *FORKS, RLOO, GRPO, DPO, SFT, OPENRLHF, LMM_R1,
)  # fmt: skip
PROJECTS = tuple(dict.fromkeys(source.project for source in SOURCES))


KINDS = tuple(source.kind for source in SOURCES if source.kind)


def sources_of(name: str | None) -> Sequence[Source]:
    """The sources of a project, or of that kind; all of them for None.

    Raises:
        ValueError: No such project.
    """
    if name is not None and name not in (*PROJECTS, *KINDS):
        raise ValueError(f"--from {name}: it can be one of {', '.join([*PROJECTS, *KINDS])}")
    return [s for s in SOURCES if name in (None, s.project, s.kind)]
