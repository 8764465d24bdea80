"""What training on answers that are already written has in common: SFT, DPO, reward models."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

from mmr1.config import Config
from mmr1.data.quarantine import Quarantine
from mmr1.data.rendering import renderer
from mmr1.data.sampler import Sampler
from mmr1.data.sources import load_mixture
from mmr1.runtime import set_up_torch
from mmr1.trainer.forward.sequences import ModelInputs
from mmr1.trainer.models.optimizer import Optimizer
from mmr1.trainer.models.state import (
    HasState,
    WriteCheckpoint,
    load_progress,
    load_snapshot,
    progress,
    save_progress,
)
from mmr1.trainer.runs.display import Display
from mmr1.trainer.runs.output import RunDirectory, check_directory
from mmr1.trainer.runs.step import Step
from mmr1.trainer.runs.take_steps import run_steps
from mmr1.trainer.runs.tracking import Trackers, check_trackers
from mmr1.types import Prompt, Sample, StepStats
from mmr1.vision.build import family_of, media_cache
from mmr1.vision.families.family import ModelFamily
from mmr1.vision.prepare import MediaCache


@dataclass(frozen=True, slots=True)
class Records:
    """The training records of a run, checked, and what turns them into prompts."""

    sources: dict[str, list[Sample]]
    shares: dict[str, float]
    dropped: list[dict[str, str]]
    family: ModelFamily
    media: MediaCache
    render: Callable[[Sample], Prompt]

    @property
    def inputs(self) -> ModelInputs:
        """What builds the model inputs of groups of these records."""
        return ModelInputs(self.family, self.media)

    def sampler(self, seed: int) -> Sampler:
        """A fresh walk through the records, the same for the same seed."""
        return Sampler(self.sources, seed, self.shares)

    def first_samples(self, seed: int, count: int) -> list[Sample]:
        """The distinct samples among the first ``count`` of a walk; two sources may share ids."""
        return list({id(sample): sample for sample in self.sampler(seed).next(count)}.values())


@dataclass(frozen=True, slots=True)
class OfflineTask:
    """What an offline run trains.

    Attributes:
        optimizer: Of the trained model.
        batch_size: Samples per step.
        step: Learns from one batch; gives what to log.
        snapshot: ``step number -> what writes model and optimizer as they are now``.
    """

    optimizer: Optimizer
    batch_size: int
    step: Callable[[Sequence[Sample]], StepStats]
    snapshot: Callable[[int], WriteCheckpoint]


def read_records(config: Config, check: Callable[[Sample], object], *, resume: bool) -> Records:
    """Read ``data.train``; ``check`` raises ValueError for a sample that cannot be used.

    Raises:
        ValueError: Something the user can mend; nothing has been written yet.
    """
    check_directory(config, resume=resume)
    check_trackers(config.trainer.trackers)
    set_up_torch(config.seed, config.trainer.threads)
    quarantine = Quarantine(None, config.data.max_bad_fraction)
    sources, shares = load_mixture(config.data, quarantine)
    for sample in chain.from_iterable(sources.values()):
        try:
            check(sample)
        except ValueError as error:
            raise ValueError(f"data.train: {error}") from None
    family = family_of(config)
    render = renderer(family, config)
    return Records(sources, shares, quarantine.dropped, family, media_cache(family, config), render)


def run_offline(config: Config, records: Records, learner: OfflineTask) -> Path:
    """Train up to step ``trainer.max_steps``, from the newest checkpoint on if there is one.

    Returns:
        The last checkpoint's directory.

    Raises:
        StoppedError: SIGTERM or Ctrl-C; what was done is saved.
    """
    with closing(RunDirectory(config)) as directory, Trackers(config, directory.path) as trackers:
        directory.log_dropped(records.dropped)
        display = Display(config.trainer, directory)
        sampler = records.sampler(config.seed)
        carried: dict[str, HasState] = {"optimizer": learner.optimizer, "sampler": sampler}
        done = 0
        if before := directory.last_checkpoint(warn=display.say):
            load_snapshot(before, learner.optimizer)
            done = load_progress(before, carried)
            display.say(f"continuing after step {done}")

        def keep(step: Step) -> None:
            directory.log(step.stats)
            trackers.log(step.stats)
            display.show(step.stats)

        def snapshot(step: int) -> WriteCheckpoint:
            write, state = learner.snapshot(step), progress(step, carried)

            def write_files(folder: Path) -> None:
                write(folder)
                save_progress(folder, state)

            return write_files

        with display:
            steps = _steps(config, learner, sampler, records.media, done)
            checkpoint = run_steps(config.trainer, steps, keep, snapshot, directory.checkpoints)
        display.say(f"checkpoint: {checkpoint}")
    return checkpoint


def _steps(
    config: Config, learner: OfflineTask, sampler: Sampler, media: MediaCache, done: int
) -> Iterator[Step]:
    for number in range(done + 1, config.trainer.max_steps + 1):
        start = time.perf_counter()
        samples = sampler.next(learner.batch_size)
        for batch in (samples, sampler.peek(learner.batch_size)):
            media.prefetch(m for sample in batch for m in sample.media)
        stats = learner.step(samples)
        seconds = time.perf_counter() - start
        yield Step(number, {"step": number, **stats, "time/step": seconds})
