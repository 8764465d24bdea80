"""A trace of a step by torch.profiler: what ran on the CPU and on the GPU, and when."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
from torch.profiler import ProfilerActivity, profile

from mmr1.config import TrainerConfig

FOLDER = "profile"


@contextmanager
def profiled(config: TrainerConfig, step: int) -> Iterator[None]:
    """Records the block if ``trainer.profile_steps`` has the step.

    Writes ``OUTPUT/profile/step_000003.json.gz``, with the phases of the step as spans
    ``mmr1/...``. What other processes do, such as vLLM, is not in it.
    """
    if step not in config.profile_steps:
        yield
        return
    activities = [ProfilerActivity.CPU]
    if torch.cuda.is_available():
        activities.append(ProfilerActivity.CUDA)
    with profile(activities=activities) as recorded:
        yield
    folder = Path(config.output_dir) / FOLDER
    folder.mkdir(parents=True, exist_ok=True)
    recorded.export_chrome_trace(str(folder / f"step_{step:06d}.json.gz"))
