"""Run the steps one by one; save when a checkpoint is due or a signal stops the run."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterable
from pathlib import Path

from mmr1.config import TrainerConfig
from mmr1.trainer.models.state import WriteCheckpoint
from mmr1.trainer.runs.checkpoint import Checkpoints, next_due
from mmr1.trainer.runs.phase_timer import PhaseTimer
from mmr1.trainer.runs.step import Step
from mmr1.trainer.runs.stopping import StoppedError, StopSignal


class RecordError(RuntimeError):
    """Metrics or rollouts could not be written; the checkpoints are unchanged."""


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
        StoppedError: SIGTERM or Ctrl-C; the current step was finished and saved. Also where it was
            the last: the caller would go on to the evaluation.
        CheckpointError: A checkpoint could not be written.
        RecordError: What a step gave could not be written.
    """
    with StopSignal(config.grace_period_s) as stop:
        for step in steps:
            _record(record, step)
            if stop.received or next_due(config, step.number) == step.number:
                with PhaseTimer(f"step {step.number}")("checkpoint"):
                    checkpoints.save(step.number, snapshot(step.number), step.stats)
            if stop.received:
                break
        last = checkpoints.wait()
    assert last is not None, "the last step is always saved"
    if stop.received:
        name = signal.Signals(stop.received).name
        raise StoppedError(
            f"{name}: saved as {last}; --resume goes on from there",
            stop.received,
        )
    return last


def _record(record: Callable[[Step], None], step: Step) -> None:
    try:
        record(step)
    except OSError as error:
        raise RecordError(
            f"the metrics and rollouts of step {step.number} could not be written ({error}). The "
            "checkpoints are untouched: free some space or repair the disk, then continue with "
            "--resume"
        ) from error
