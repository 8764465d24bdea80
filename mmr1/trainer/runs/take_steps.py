"""Run the steps one by one; save when a checkpoint is due or a signal stops the run."""

from __future__ import annotations

import logging
import signal
import time
from collections.abc import Callable, Iterable
from pathlib import Path

from mmr1.config import TrainerConfig
from mmr1.trainer.models.state import WriteCheckpoint
from mmr1.trainer.runs.checkpoint import Checkpoints, next_due
from mmr1.trainer.runs.full_disk import RETRY_S
from mmr1.trainer.runs.step import PhaseTimer, Step
from mmr1.trainer.runs.stopping import StoppedError, StopSignal

logger = logging.getLogger(__name__)


class RecordError(RuntimeError):
    """Metrics or rollouts could not be written; the checkpoints are unchanged."""


def run_steps(
    config: TrainerConfig,
    steps: Iterable[Step],
    record: Callable[[Step], None],
    snapshot: Callable[[Step], WriteCheckpoint],
    checkpoints: Checkpoints,
) -> Path:
    """Run all steps; returns the last checkpoint's directory.

    A checkpoint that a full disk refuses is written when the next one is due. That of the last step
    is tried again for ``trainer.disk_patience_s``, for what it holds is nowhere else.

    Args:
        config: ``save_steps``, ``max_steps``, ``grace_period_s`` and ``disk_patience_s`` count.
        steps: Each runs when it is taken from the iterator.
        record: Logs a finished step.
        snapshot: Gives a function that writes the run as it is now, after the step.
        checkpoints: Writes them.

    Raises:
        StoppedError: SIGTERM or Ctrl-C; the current step was finished and saved. Also where it was
            the last: the caller would go on to the evaluation.
        CheckpointError: A checkpoint could not be written.
        RecordError: What a step gave could not be written.
    """

    def save(step: Step) -> None:
        with PhaseTimer(f"step {step.number}")("checkpoint"):
            checkpoints.save(step.number, snapshot(step), step.stats)

    with StopSignal(config.grace_period_s) as stop:
        for step in steps:
            _record(record, step)
            if stop.received or next_due(config, step.number) == step.number:
                save(step)
            if stop.received:
                break
        checkpoints.wait()
        if checkpoints.unsaved:
            _insist(lambda: save(step), checkpoints, stop, config.disk_patience_s)
        last = checkpoints.last
    assert last is not None, "the last step is always saved"
    if stop.received:
        name = signal.Signals(stop.received).name
        raise StoppedError(
            f"{name}: saved as {last}; --resume goes on from there",
            stop.received,
        )
    return last


def _insist(
    save: Callable[[], None], checkpoints: Checkpoints, stop: StopSignal, patience_s: float
) -> None:
    """Save the last step while the disk is full: no step follows that could.

    Raises:
        DiskFullError: The disk is still full, or a signal asks for the end.
    """
    until = time.monotonic() + patience_s
    logger.warning(
        "the last step is tried again until it is saved, for %g s (trainer.disk_patience_s)",
        patience_s,
    )
    while checkpoints.unsaved:
        if stop.received or time.monotonic() >= until:
            raise checkpoints.unsaved
        time.sleep(RETRY_S)
        save()
        checkpoints.wait()


def _record(record: Callable[[Step], None], step: Step) -> None:
    try:
        record(step)
    except OSError as error:
        raise RecordError(
            f"the metrics and rollouts of step {step.number} could not be written ({error}). The "
            "checkpoints are untouched: free some space or repair the disk, then continue with "
            "--resume"
        ) from error
