"""A trace of a step by torch.profiler: what ran on the CPU and on the GPU, and when."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

import torch
from torch.profiler import ProfilerActivity, profile

from mmr1.config import TrainerConfig

FOLDER = "profile"


class Traceable(Protocol):
    """Other processes, which write traces of their own part of a step."""

    def begin_trace(self) -> None: ...

    def end_trace(self, file: Path) -> None:
        """Each writes a file beside this one, named after it."""
        ...


@contextmanager
def profiled(config: TrainerConfig, step: int, ranks: Traceable | None = None) -> Iterator[None]:
    """Records the block if ``trainer.profile_steps`` has the step.

    Writes ``OUTPUT/profile/step_000003.json.gz``, with the phases of the step as spans
    ``mmr1/...``. What vLLM does is not in it.

    Args:
        ranks: They learn, where this process does not.
    """
    if step not in config.profile_steps:
        yield
        return
    if ranks:
        ranks.begin_trace()
    with recording() as recorded:
        yield
    file = Path(config.output_dir) / FOLDER / f"step_{step:06d}.json.gz"
    write_trace(recorded, file)
    if ranks:
        ranks.end_trace(file)


def recording() -> profile:
    """Of what this thread does, on the CPU and on the GPU."""
    activities = [ProfilerActivity.CPU]
    if torch.cuda.is_available():
        activities.append(ProfilerActivity.CUDA)
    return profile(activities=activities)


def write_trace(recorded: profile, file: Path) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    recorded.export_chrome_trace(str(file))


def of_rank(file: Path, rank: int) -> Path:
    """Beside ``step_000003.json.gz`` it is ``step_000003_rank_00001.json.gz``."""
    name = file.name.removesuffix(".json.gz")
    return file.with_name(f"{name}_rank_{rank:05d}.json.gz")
