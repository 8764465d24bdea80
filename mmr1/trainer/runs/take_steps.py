"""Run the steps one by one; save when a checkpoint is due or a signal stops the run."""

from __future__ import annotations

import logging
import signal
import time
from collections.abc import Callable, Iterable
from pathlib import Path

from mmr1.config import TrainerConfig
from mmr1.trainer.models.state import WriteCheckpoint
from mmr1.trainer.runs.checkpoint import Checkpoints, next_due, told_last
from mmr1.trainer.runs.full_disk import DiskFullError, is_full
from mmr1.trainer.runs.phase_timer import PhaseTimer
from mmr1.trainer.runs.step import Step
from mmr1.trainer.runs.stopping import StoppedError, StopSignal

logger = logging.getLogger(__name__)

LAST_SAVE_S = 600.0
"""Seconds for which the last save is tried again while the disk is full."""
RETRY_S = 1.0
"""Seconds between two attempts."""


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
    is tried again for ``LAST_SAVE_S``, for what it holds is nowhere else.

    Args:
        config: ``save_steps``, ``max_steps`` and ``grace_period_s`` count.
        steps: Each runs when it is taken from the iterator.
        record: Logs a finished step.
        snapshot: Gives a function that writes the run as it is now, after the step.
        checkpoints: Writes them.

    Raises:
        StoppedError: SIGTERM or Ctrl-C; the current step was finished and saved. Also where it was
            the last: the caller would go on to the evaluation.
        CheckpointError: A checkpoint could not be written.
        DiskFullError: The disk is full for metrics or rollouts, or for the last checkpoint.
        RecordError: What a step gave could not be written for another reason.
    """

    def save(step: Step) -> None:
        with PhaseTimer(f"step {step.number}")("checkpoint"):
            checkpoints.save(step.number, snapshot(step), step.stats)

    with StopSignal(config.grace_period_s) as stop:
        for step in steps:
            _record(record, step, checkpoints)
            if stop.received or next_due(config, step.number) == step.number:
                save(step)
            if stop.received:
                break
        checkpoints.wait()
        if checkpoints.unsaved:
            _insist(lambda: save(step), checkpoints, stop)
        last = checkpoints.last
    assert last is not None, "the last step is always saved"
    if stop.received:
        name = signal.Signals(stop.received).name
        raise StoppedError(
            f"{name}: saved as {last}; --resume goes on from there",
            stop.received,
        )
    return last


def _insist(save: Callable[[], None], checkpoints: Checkpoints, stop: StopSignal) -> None:
    """Save the last step while the disk is full: no step follows that could.

    Raises:
        DiskFullError: The disk is still full, or a signal asks for the end.
    """
    until = time.monotonic() + LAST_SAVE_S
    logger.warning("the last step is tried again until it is saved, for %g s", LAST_SAVE_S)
    while checkpoints.unsaved:
        if stop.received or time.monotonic() >= until:
            raise checkpoints.unsaved
        time.sleep(RETRY_S)
        save()
        checkpoints.wait()


def _record(record: Callable[[Step], None], step: Step, checkpoints: Checkpoints) -> None:
    try:
        record(step)
    except OSError as error:
        kind = DiskFullError if is_full(error) else RecordError
        raise kind(
            f"the metrics and rollouts of step {step.number} could not be written ({error}). "
            f"{told_last(checkpoints.last)}: free some space or repair the disk, then continue "
            "with --resume"
        ) from error
