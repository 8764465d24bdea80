"""A step of a run: its record, metrics, seconds by phase and trace, and stopping by a signal."""

from __future__ import annotations

import logging
import signal
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean
from types import FrameType
from typing import Any, Protocol, Self

import numpy as np
import torch
from torch.profiler import ProfilerActivity, profile, record_function

from mmr1.config import TrainerConfig
from mmr1.config.run_folder import RESUME
from mmr1.progress import LONG_S, report_activity
from mmr1.rewards.composite import reward_stats
from mmr1.trainer.models.optimizer import NonFiniteError
from mmr1.trainer.runs.step_file import StepRecord
from mmr1.types import Completion, ScoredGroup, StepStats
from mmr1.vision.prepare import MediaCache


class StoppedError(RuntimeError):
    """The run was stopped by the signal ``signum``."""

    def __init__(self, message: str, signum: int) -> None:
        super().__init__(message)
        self.signum = signum


class StopSignal:
    """While active, the first SIGTERM, Ctrl-C or SIGHUP only sets ``received``.

    SIGHUP comes when a terminal is closed or an SSH session drops. A run under ``nohup`` ignores
    it, and continues.

    A second one, or the end of the grace period, raises ``StoppedError`` in the main thread at
    once. The current step is then lost; earlier checkpoints are not.
    """

    def __init__(self, grace_period_s: float) -> None:
        self.received: int | None = None
        self._grace_s = grace_period_s
        self._before: dict[int, object] = {}

    def __enter__(self) -> Self:
        heard = [signal.SIGTERM, signal.SIGINT, signal.SIGALRM]
        if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
            heard.append(signal.SIGHUP)
        for signum in heard:
            self._before[signum] = signal.signal(signum, self._handle)
        return self

    def __exit__(self, *_: object) -> None:
        signal.setitimer(signal.ITIMER_REAL, 0)
        for signum, handler in self._before.items():
            signal.signal(signum, handler)  # type: ignore[arg-type]

    def _handle(self, signum: int, frame: FrameType | None) -> None:
        if self.received is None and signum != signal.SIGALRM:
            self.received = signum
            signal.setitimer(signal.ITIMER_REAL, self._grace_s)
            return
        raise StoppedError(
            f"stopped before the step was finished; {RESUME} continues from the last checkpoint",
            self.received or signum,
        )


logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Step:
    """The samples and metrics of one step.

    Attributes:
        number: Number of the step, from 1.
        metrics: Metrics by name, as the line of ``metrics.jsonl``.
        scored: The groups that the step learned from.
        advantages: One per completion, in group order.
        rollout_state: Gives the state after the step's rollout; see ``sampler.Batch``.
        vision_use: ``pieces`` of ``sampling.views.VisionUse`` where the step measured it.
        record: Record of the step file; None if the step has none.
    """

    number: int
    metrics: StepStats
    scored: Sequence[ScoredGroup] = ()
    advantages: Sequence[float] = ()
    rollout_state: Callable[[], Mapping[str, Any]] = dict
    vision_use: Mapping[int, Sequence[Sequence[tuple[str, float]]]] = field(default_factory=dict)
    record: StepRecord | None = None


class FailedStepError(NonFiniteError):
    """An update refused its numbers; ``step`` holds what it was to learn from."""

    def __init__(self, message: str, step: Step) -> None:
        super().__init__(message)
        self.step = step


class PhaseTimer:
    """The phases of one step, such as ``rollout`` and ``update``, or of the start of a run.

    Each phase is a line of the log at INFO, and a span ``mmr1/PHASE`` of ``torch.profiler``.

    Args:
        label: Owner of the phases in the log, such as ``step 3``.
        report_after_s: A longer phase is reported; see :func:`mmr1.progress.report_activity`.

    Attributes:
        phases: Seconds of each phase; a phase that runs twice is added up.
    """

    def __init__(self, label: str, report_after_s: float = LONG_S) -> None:
        self.phases: dict[str, float] = {}
        self._label, self._report_after_s = label, report_after_s
        self._start = time.perf_counter()

    @contextmanager
    def __call__(self, phase: str) -> Iterator[None]:
        start = time.perf_counter()
        with (
            record_function(f"mmr1/{phase}"),
            report_activity(phase, self._label, self._report_after_s),
        ):
            yield
        seconds = time.perf_counter() - start
        self.phases[phase] = self.phases.get(phase, 0.0) + seconds
        logger.info("%s: %s took %.3f s", self._label, phase, seconds)

    def seconds(self) -> dict[str, float]:
        """The phases, and ``step``: the time since this timer was made."""
        return {**self.phases, "step": time.perf_counter() - self._start}


FOLDER = "profile"


class Traceable(Protocol):
    """Other processes, which write traces of their own part of a step."""

    def begin_trace(self) -> None: ...

    def end_trace(self, file: Path) -> None:
        """Write each process's file beside this one, named after it."""
        ...


def profiled_if(
    config: TrainerConfig, step: int, ranks: Traceable | None = None
) -> AbstractContextManager[None]:
    """:func:`profiled` where ``trainer.profile_steps`` names the step."""
    return profiled(config, step, ranks) if step in config.profile_steps else nullcontext()


@contextmanager
def profiled(config: TrainerConfig, step: int, ranks: Traceable | None = None) -> Iterator[None]:
    """Record the block, if ``trainer.profile_steps`` names the step.

    Writes ``OUTPUT/profile/step_000003.json.gz``, with the phases of the step as spans
    ``mmr1/...``. What vLLM does is not in it.

    Args:
        ranks: They learn, where this process does not.
    """
    if ranks:
        ranks.begin_trace()
    with recording() as recorded:
        yield
    file = Path(config.output_dir) / FOLDER / f"step_{step:06d}.json.gz"
    write_trace(recorded, file)
    if ranks:
        ranks.end_trace(file)


def recording() -> profile:
    """A profile of this thread, on the CPU and on the GPU."""
    activities = [ProfilerActivity.CPU]
    if torch.cuda.is_available():
        activities.append(ProfilerActivity.CUDA)
    return profile(activities=activities)


def write_trace(recorded: profile, file: Path) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    recorded.export_chrome_trace(str(file))


def rank_trace_path(file: Path, rank: int) -> Path:
    """The trace file of a rank: ``step_000003_rank_00001.json.gz`` for ``step_000003.json.gz``."""
    name = file.name.removesuffix(".json.gz")
    return file.with_name(f"{name}_rank_{rank:05d}.json.gz")


def step_stats(
    step: int,
    scored: Sequence[ScoredGroup],
    update: Mapping[str, float],
    seconds: Mapping[str, float],
    media: MediaCache,
) -> StepStats:
    """A line of ``metrics.jsonl``. Means of rewards are over valid rewards only.

    ``tokens/prompt`` counts each prompt once, vision tokens included. ``tokens/vision`` counts the
    vision tokens alone.

    Args:
        step: The step's number.
        scored: All groups that were sampled.
        update: Metrics of the update.
        seconds: Seconds of each phase.
        media: Media, for the number of vision tokens.
    """
    rewards = [r for s in scored for r in s.rewards]
    completions = [c for s in scored for c in s.group.completions]
    lengths = [c.sampled_tokens for c in completions]
    vision = sum(media[m].tokens for s in scored for m in s.group.prompt.media)
    text = [len(s.group.prompt.token_ids) - len(s.group.prompt.media) for s in scored]
    return {
        "step": step,
        **reward_stats(rewards),
        "reward/frac_zero_std": fmean(
            len({r.value for r in s.rewards if r.valid}) < 2 for s in scored
        ),
        **update,
        "completions/mean_length": fmean(lengths),
        "completions/frac_truncated": fmean(c.truncated for c in completions),
        "tokens/prompt": sum(text) + vision,
        "tokens/vision": vision,
        "tokens/completion": sum(lengths),
        **support_stats(completions),
        **(environment_stats(completions) if any(c.spans for c in completions) else {}),
        **{f"time/{name}": value for name, value in seconds.items()},
    }


def support_stats(completions: Sequence[Completion]) -> StepStats:
    """Metrics of the ids that the sampler kept for each token; none where nothing was cut.

    ``rollout/kept_ids_mean``, ``rollout/kept_ids_p99``, and ``rollout/frac_single_id``: the share
    of tokens that could not have been another one.
    """
    sizes = [c.support.sizes for c in completions if c.support is not None]
    if not sizes or not (counts := np.concatenate(sizes)).any():
        return {}
    kept = counts[counts > 0]
    return {
        "rollout/kept_ids_mean": float(kept.mean()),
        "rollout/kept_ids_p99": float(np.quantile(kept, 0.99)),
        "rollout/frac_single_id": float((kept == 1).mean()),
    }


def environment_stats(completions: Sequence[Completion]) -> StepStats:
    """Metrics of the policy's use of its environment.

    ``environment/calls/NAME`` counts the calls of a tool, those that failed included, per
    completion. ``tokens/environment`` are those that the policy did not sample.
    """
    calls = [call for c in completions for call in c.calls]
    names = sorted({call.name for call in calls if call.name})
    count = len(completions)
    return {
        "environment/turns": fmean(c.turns for c in completions),
        "environment/sequences": fmean(len(c.sequences) for c in completions),
        "environment/frac_tool_call": fmean(bool(c.calls) for c in completions),
        "environment/images_mean": fmean(len(c.media) for c in completions),
        "environment/frac_failed_calls": sum(c.error is not None for c in calls)
        / max(1, len(calls)),
        **{f"environment/calls/{n}": sum(c.name == n for c in calls) / count for n in names},
        "environment/frac_failed": fmean(c.failure is not None for c in completions),
        "tokens/environment": sum(len(c.token_ids) - c.sampled_tokens for c in completions),
    }
