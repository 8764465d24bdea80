"""Drive a run: start, record its steps, save when it is due, stop at a signal, resume.

The steps come from a loop (``loop.py``, or one of ``offline``) that knows nothing of all this.
"""

from __future__ import annotations

import logging
import math
import signal
import time
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import repeat
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch

from mmr1.config import Config
from mmr1.config.checks import check
from mmr1.config.run_folder import RESUME
from mmr1.data.quarantine import Quarantine
from mmr1.registry import suggest
from mmr1.trainer.components import TrainerComponents
from mmr1.trainer.inputs import Inputs
from mmr1.trainer.models.optimizer import schedule_factor
from mmr1.trainer.models.state import (
    TRAINING,
    Digests,
    HasState,
    WriteCheckpoint,
    load_progress,
    load_tensors,
    progress,
    save_progress,
    save_tensors,
)
from mmr1.trainer.models.weights import copy_to_cpu
from mmr1.trainer.runs.checkpoint import (
    Checkpoints,
    DiskFullError,
    is_full,
    name_last,
    step_of,
)
from mmr1.trainer.runs.display import Display
from mmr1.trainer.runs.existing import check_output_dir
from mmr1.trainer.runs.output import EVALUATION, RecordError, RunDirectory, finished
from mmr1.trainer.runs.step import FailedStepError, PhaseTimer, Step, StoppedError, StopSignal
from mmr1.trainer.runs.step_file import StepFiles
from mmr1.trainer.runs.tracking import Trackers, check_trackers
from mmr1.trainer.validation.evaluate import Evaluation, summary_line, write_evaluation
from mmr1.types import StepStats
from mmr1.vision.prepare import MediaCache

logger = logging.getLogger(__name__)

LAST_SAVE_S = 600.0
"""Seconds for which the last save is tried again while the disk is full."""
RETRY_S = 1.0
"""Seconds between two attempts."""

Steps = Generator[Step, None, Path]
"""A run: each step is yielded when it is recorded and saved; returns the last checkpoint.

Whoever closes it ends the run after the step that was yielded last, which is then saved.
"""


def to_the_end(steps: Steps) -> Path:
    """Run all steps; returns the directory of the last checkpoint."""
    while True:
        try:
            next(steps)
        except StopIteration as finished:
            last: Path = finished.value
            return last


def already_finished(config: Config, *, resume: bool) -> Path | None:
    """The last checkpoint of a run that has nothing left to do.

    Raises:
        ValueError: ``trainer.output_dir`` or a tracker cannot be used.
    """
    check_output_dir(config, resume=resume)
    if resume and (last := finished(config)):
        print(f"all {step_of(last)} steps are done; checkpoint: {last}")
        return last
    check_trackers(config.trainer.trackers)
    return None


def with_epochs(config: Config, samples: int, batch_size: int) -> Config:
    """The configuration with ``trainer.max_steps`` set by ``trainer.total_epochs``.

    A run that is given both ends with whichever comes first. An epoch is as many steps as the
    batches that the samples fill, the last one perhaps not whole.

    Args:
        samples: Number of samples of all datasets of ``data.train`` together.
        batch_size: Samples that a step takes.

    Raises:
        ValueError: The number of steps does not fit other keys.
    """
    trainer = config.trainer
    if trainer.total_epochs is None:
        return config
    steps = math.ceil(trainer.total_epochs * samples / batch_size)
    if trainer.max_steps is not None:
        steps = min(steps, trainer.max_steps)
    resolved = config.changed({"trainer.max_steps": max(1, steps)})
    check(resolved)
    return resolved


@dataclass(frozen=True, slots=True)
class Run:
    """An open run: its folder, its trackers, its display.

    Attributes:
        quarantines: Rows of the data that have been left out.
        log_completions_steps: Completions are logged after so many steps, and after the first and
            the last one.
        trackers: None without ``trainer.tracking``.
        at_end: Closes the trackers.
        step_files: Writer of step files; None for runs that write none.
    """

    config: Config
    directory: RunDirectory
    trackers: Trackers | None
    display: Display
    media: MediaCache
    quarantines: Sequence[Quarantine]
    log_completions_steps: int
    at_end: ExitStack
    step_files: StepFiles | None = None

    def begin(self) -> None:
        """Write the configuration and start the trackers, once nothing can refuse the run."""
        if line := self._changed_rate():
            self.display.say(line)
        self.directory.begin()
        if self.trackers is not None:
            self.at_end.enter_context(self.trackers)
        self.directory.log_dropped(self.quarantines)

    def _changed_rate(self) -> str | None:
        """Say how the next learning rate differs from that of the length that the run had."""
        config, last = self.config, self.directory.checkpoints.last
        before, after = self.directory.steps_before, config.trainer.steps
        if last is None or before in (None, after):
            return None
        assert before is not None
        updates, idle = config.updates, after - config.policy_steps
        done = max(0, step_of(last) - idle) * updates
        old, new = (
            config.optimizer.lr * schedule_factor(done, (steps - idle) * updates, config.optimizer)
            for steps in (before, after)
        )
        if old == new:
            return None
        return (
            f"the run has {after} steps in place of {before}: the learning rate of step "
            f"{step_of(last) + 1} is {new:.3g}, and was to be {old:.3g}; "
            f"optimizer.scheduler.steps={(before - idle) * updates} keeps the schedule that it had"
        )

    def take(self, steps: Iterable[Step], snapshot: Callable[[Step], WriteCheckpoint]) -> Steps:
        """Run the steps, record and save each, and yield it.

        A checkpoint that a full disk refuses is written when the next one is due. That of the last
        step is tried again for ``LAST_SAVE_S``, for what it holds is nowhere else.

        Args:
            steps: Each runs when it is taken from the iterator.
            snapshot: Gives a function that writes the run as it is now, after the step.

        Raises:
            StoppedError: SIGTERM or Ctrl-C; the current step was finished and saved. Also where it
                was the last: the caller would continue to the evaluation.
            CheckpointError: A checkpoint could not be written.
            DiskFullError: The disk is full for metrics or rollouts, or for the last checkpoint.
            RecordError: If the results of a step could not be written for another reason.
            FailedStepError: An update refused its numbers; its batch has been written.
        """
        config, checkpoints = self.config.trainer, self.directory.checkpoints
        last_step, every = config.steps, config.save_steps or config.steps

        def save(step: Step) -> None:
            with PhaseTimer(f"step {step.number}")("checkpoint"):
                checkpoints.save(step.number, snapshot(step), step.metrics)

        with self._failed_batch_logged(), StopSignal(config.grace_period_s) as stop:
            for step in steps:
                self.record(step)
                due = step.number % every == 0 or step.number == last_step
                if due:
                    save(step)
                try:
                    if not stop.received:
                        yield step
                except GeneratorExit:
                    if not due:
                        save(step)
                    checkpoints.wait()
                    raise
                if stop.received:
                    if not due:
                        save(step)
                    break
            checkpoints.wait()
            if checkpoints.unsaved:
                retry_save(lambda: save(step), checkpoints, stop)
            last = checkpoints.last
        assert last is not None, "the last step is always saved"
        if stop.received:
            name = signal.Signals(stop.received).name
            message = f"{name}: saved as {last}; {RESUME} continues from there"
            raise StoppedError(message, stop.received)
        return last

    @contextmanager
    def _failed_batch_logged(self) -> Iterator[None]:
        """Write the batch of a step that fails, and name its file in the error."""
        try:
            yield
        except FailedStepError as error:
            step = error.step
            file = self.directory.log_rollouts(
                step.number, step.scored, self.media, step.advantages
            )
            error.args = (f"step {step.number}: {error}. Its batch is in {file}",)
            raise

    def record(self, step: Step) -> None:
        """Log a finished step, and its completions when that is due.

        Raises:
            DiskFullError, RecordError: They could not be written.
            ValueError: If the metric of the best checkpoint is not among them.
        """
        self._check_best_metric(step.metrics)
        try:
            self.directory.log(step.metrics)
            if self.trackers is not None:
                self.trackers.log(step.metrics)
            ends = (1, self.config.trainer.max_steps)
            due = step.number % self.log_completions_steps == 0 or step.number in ends
            if step.scored and (due or step.vision_use):
                advantages = step.advantages or repeat(None)
                self.directory.log_rollouts(
                    step.number, step.scored, self.media, advantages, vision_use=step.vision_use
                )
                if self.trackers is not None:
                    self.trackers.log_rollouts(step.number, step.scored, advantages)
            if step.record is not None and self.step_files is not None:
                self.step_files.write(step.number, step.record)
            self.directory.log_dropped(self.quarantines)
            self.display.show(step)
        except OSError as error:
            kind = DiskFullError if is_full(error) else RecordError
            raise kind(
                f"the metrics and rollouts of step {step.number} could not be written ({error}). "
                f"{name_last(self.directory.checkpoints.last)}: free some space or repair the "
                f"disk, then continue with {RESUME}"
            ) from error

    def _check_best_metric(self, metrics: StepStats) -> None:
        """Refuse a metric for the best checkpoint that neither steps nor validations log."""
        checkpoints = self.config.trainer.checkpoints
        name = None if checkpoints is None else checkpoints.metric_for_best_model
        validated = any(key.startswith("eval/") for key in metrics)
        if name is None or name in metrics or name.startswith("eval/") != validated:
            return
        known = [key for key in metrics if not key.startswith("time/")]
        raise ValueError(
            f"trainer.checkpoints.metric_for_best_model: step {metrics['step']} logs no "
            f"'{name}'{suggest(name, known)}; the names are those of metrics.jsonl"
        )

    def record_evaluation(self, result: Evaluation) -> None:
        """Write the evaluation of the last weights."""
        write_evaluation(self.directory.path / EVALUATION, result)
        self.directory.log_dropped(self.quarantines)
        self.display.say(summary_line(result))


@contextmanager
def open_run(
    config: Config,
    inputs: Inputs,
    functions: Iterable[str] = (),
    log_completions_steps: int | None = None,
    step_files: StepFiles | None = None,
) -> Iterator[Run]:
    """Open the folder of a run, which is then locked.

    Args:
        config: The configuration with the number of steps that its epochs are.
        functions: The reward functions whose means are shown.
        log_completions_steps: See :class:`Run`; default: ``trainer.log_completions_steps``.
        step_files: See :class:`Run`.
    """
    every = log_completions_steps or config.trainer.log_completions_steps
    opened = RunDirectory(config, inputs.asked, inputs.fingerprints)
    with opened as directory, ExitStack() as at_end:
        display = Display(config.trainer, directory, functions)
        trackers = Trackers(config, directory.path) if config.trainer.trackers else None
        rows = tuple(inputs.quarantines.values())
        yield Run(
            config, directory, trackers, display, inputs.media, rows, every, at_end, step_files
        )


def retry_save(save: Callable[[], None], checkpoints: Checkpoints, stop: StopSignal) -> None:
    """Save the last step again while the disk is full: no step follows that could.

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


def snapshot(config: Config, components: TrainerComponents, step: Step) -> WriteCheckpoint:
    """A function that writes the state after ``step`` into a checkpoint's folder."""
    in_background = config.trainer.async_save
    if config.trainer.save_only_model:
        return components.policy.snapshot(copy=in_background, only_model=True)
    policy = components.policy.snapshot(copy=in_background)
    critic = [components.critic.snapshot(copy=in_background)] if components.critic else []
    state = {**progress(step.number, _of_updates(components)), **step.rollout_state()}
    # A reference that is not refreshed is the model that the run was started with.
    reference: Mapping[str, torch.Tensor] = {}
    if components.reference is not None and config.algorithm.moving_reference is not None:
        reference = components.reference.weights()
        if in_background:
            reference = copy_to_cpu(reference)

    return with_state([policy, *critic], state, reference)


def with_state(
    parts: Sequence[WriteCheckpoint],
    state: Mapping[str, Any],
    reference: Mapping[str, torch.Tensor] = MappingProxyType({}),
) -> WriteCheckpoint:
    """A function that writes these parts of a checkpoint, the run's state and its reference."""
    return partial(_write_files, parts, state, reference)


def _write_files(
    parts: Sequence[WriteCheckpoint],
    state: Mapping[str, Any],
    reference: Mapping[str, torch.Tensor],
    folder: Path,
) -> Digests:
    digests = {name: digest for write in parts for name, digest in write(folder).items()}
    save_progress(folder, state)
    if reference:
        save_tensors(folder / TRAINING / "reference", reference)
    return digests


def restore(checkpoint: Path, components: TrainerComponents) -> int:
    """Restore every component; returns the step after which the checkpoint was written.

    Raises:
        ValueError: The model or the data are others than those of the checkpoint, or it is a model
            alone.
    """
    if not (checkpoint / TRAINING).is_dir():
        raise ValueError(
            f"{checkpoint} is a model alone (trainer.save_only_model), from which no run can "
            "resume; start a new run with it as model.path"
        )
    components.policy.load_snapshot(checkpoint)
    if components.critic:
        components.critic.load_snapshot(checkpoint)
    step = load_progress(checkpoint, _of_updates(components) | _of_rollouts(components))
    reference = checkpoint / TRAINING / "reference"
    if components.reference is not None and reference.exists():
        weights = dict(components.reference.weights())
        load_tensors(reference, weights)
        components.reference.load_weights(weights)
    # A copy: an engine that is replaced while the ranks learn gets the weights that it had.
    components.engine.load(components.policy.weights(copy=True), components.policy.version)
    return step


def _of_updates(components: TrainerComponents) -> dict[str, HasState]:
    """The components that an update changes."""
    carried: dict[str, HasState] = {
        "policy": components.policy,
        "coefficients": components.coefficients,
        "algorithm": components.algorithm,
    }
    if components.critic:
        carried["critic"] = components.critic
    if components.demonstrations:
        carried["demonstrations"] = components.demonstrations
    return carried


def _of_rollouts(components: TrainerComponents) -> dict[str, HasState]:
    """Components that rollouts change, perhaps ahead of the update; see ``sampler.Batch.state``."""
    carried: dict[str, HasState] = {"sampler": components.loader}
    if components.kept:
        carried["kept"] = components.kept
    if components.open_groups is not None:  # it may be empty
        carried["open_groups"] = components.open_groups
    return carried
