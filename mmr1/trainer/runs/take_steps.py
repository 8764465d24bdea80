"""Takes the steps of a run one by one; saves when a checkpoint is due or a signal asks for one."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterable
from pathlib import Path

from mmr1.config import TrainerConfig
from mmr1.trainer.models.state import WriteCheckpoint
from mmr1.trainer.runs.checkpoint import Checkpoints, next_due, step_of
from mmr1.trainer.runs.step import Step
from mmr1.trainer.runs.stopping import StoppedError, StopSignal


def run_steps(
    config: TrainerConfig,
    steps: Iterable[Step],
    keep: Callable[[Step], None],
    snapshot: Callable[[int], WriteCheckpoint],
    checkpoints: Checkpoints,
) -> Path:
    """Take all steps, hand each to ``keep``; the last checkpoint's directory.

    Args:
        snapshot: ``step number -> what writes the run as it is now``.

    Raises:
        StoppedError: SIGTERM or Ctrl-C; the step in hand was finished and saved.
        CheckpointError: The disk refused a checkpoint.
    """
    with StopSignal(config.grace_period_s) as stop:
        for step in steps:
            keep(step)
            if stop.received or next_due(config, step.number) == step.number:
                checkpoints.save(step.number, snapshot(step.number), step.stats)
            if stop.received:
                break
    last = checkpoints.wait()
    assert last is not None, "the last step is always saved"
    if stop.received and step_of(last) < config.max_steps:
        name = signal.Signals(stop.received).name
        raise StoppedError(
            f"{name}: saved as {last}; --resume goes on from there",
            stop.received,
        )
    return last
