"""Run the steps one by one; save when a checkpoint is due or a signal stops the run."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterable
from pathlib import Path

from mmr1.config import TrainerConfig
from mmr1.trainer.models.state import WriteCheckpoint
from mmr1.trainer.runs.checkpoint import Checkpoints, next_due, step_of
from mmr1.trainer.runs.phase_timer import PhaseTimer
from mmr1.trainer.runs.step import Step
from mmr1.trainer.runs.stopping import StoppedError, StopSignal


def run_steps(
    config: TrainerConfig,
    steps: Iterable[Step],
    record: Callable[[Step], None],
    snapshot: Callable[[int], WriteCheckpoint],
    checkpoints: Checkpoints,
) -> Path:
    """Run all steps; returns the last checkpoint's directory.

    Args:
        config: ``save_steps``, ``max_steps`` and ``grace_period_s`` count.
        steps: Each runs when it is taken from the iterator.
        record: Logs a finished step.
        snapshot: Maps the step's number to a function that writes the run as it is now.
        checkpoints: Writes them.

    Raises:
        StoppedError: SIGTERM or Ctrl-C; the current step was finished and saved.
        CheckpointError: A checkpoint could not be written.
    """
    with StopSignal(config.grace_period_s) as stop:
        for step in steps:
            record(step)
            if stop.received or next_due(config, step.number) == step.number:
                with PhaseTimer(f"step {step.number}")("checkpoint"):
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
