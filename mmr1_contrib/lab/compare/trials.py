"""The runs of a comparison: one after the other, each in a separate process."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from mmr1.config import Config
from mmr1.trainer.runs.checkpoint import step_of
from mmr1.trainer.runs.existing import check_output_dir
from mmr1.trainer.runs.output import finished
from mmr1_contrib.lab.compare.metrics import BEFORE, curve_of, values_of
from mmr1_contrib.lab.compare.plan import Plan, Run


class RunFailedError(RuntimeError):
    """A run of a comparison ended with an error."""


@dataclass(frozen=True, slots=True)
class Trial:
    """The results of one arm with one seed.

    Attributes:
        values: Value of each metric, by its name in tables.
        curves: Means over the tenths of the run, of those metrics that steps have.
    """

    arm: str
    seed: int
    values: dict[str, float]
    curves: dict[str, tuple[float, ...]]


def run_trials(
    plan: Plan, seeds: Iterable[int], output: Path, say: Callable[[str], None] = print
) -> list[Trial]:
    """Run every arm with every seed; what is finished is not repeated, what was stopped resumes.

    Raises:
        ValueError: A folder holds another run, or a run has no such metric.
        RunFailedError: A run failed; names its log.
    """
    trials = []
    evaluates = any("eval/" in metric for metric in plan.metrics.values())
    before = any("eval/" in m and BEFORE in m for m in plan.metrics.values())
    for seed in seeds:
        for arm in plan.arms:
            folders: list[Path] = []
            model = None
            for run in arm.runs:
                last = run is arm.runs[-1]
                model = _train(run, seed, output, model, say)
                if run.evaluation is not None and (evaluates if last else before):
                    # What is evaluated already is read again, or refused where it has changed.
                    evaluation = run.evaluation_arguments(seed, output, model)
                    _run_mmr1(run, seed, output, ["eval", *evaluation])
                folders.append(run.folder(seed, output))
            values = values_of(folders, plan.metrics)
            curves = {name: curve_of(folders[-1], m) for name, m in plan.drawn.items()}
            trials.append(Trial(arm.name, seed, values, curves))
    return trials


def _train(
    run: Run, seed: int, output: Path, model: Path | None, say: Callable[[str], None]
) -> Path:
    """The last checkpoint of a finished run.

    Args:
        model: The checkpoint that it starts from; None: that of its configuration.
    """
    config = run.config(seed, output, model)
    check_output_dir(config, resume=True)
    last = _last_checkpoint(config)
    if last is None:
        say(f"{run.name}, seed {seed}")
        arguments = [str(run.file), *run.arguments(seed, output, model), "--resume"]
        _run_mmr1(run, seed, output, [run.command, *arguments])
        last = _last_checkpoint(config)
        assert last is not None
    return last


def _run_mmr1(run: Run, seed: int, output: Path, arguments: list[str]) -> None:
    """Run ``mmr1`` in a separate process, with a log beside the run's folder."""
    folder = run.folder(seed, output)
    log = folder.parent / f"{folder.name}.log"
    log.parent.mkdir(parents=True, exist_ok=True)
    code = _run_to_end([sys.executable, "-m", "mmr1", *arguments], log)
    if code:
        last = (log.read_text(errors="replace").strip().splitlines() or ["no output"])[-1]
        raise RunFailedError(f"{run.name}, seed {seed} ended with code {code}: {last} ({log})")


def _last_checkpoint(config: Config) -> Path | None:
    """The last checkpoint of a finished run."""
    last = finished(config)
    if last is None:
        return None
    if config.trainer.total_epochs is None and step_of(last) > config.trainer.steps:
        raise ValueError(
            f"{last} is of a longer run than trainer.max_steps={config.trainer.steps}; name "
            "another --output"
        )
    return last


def _run_to_end(command: list[str], log: Path) -> int:
    """Run a command to its end. If this process is stopped, the run saves its step first."""
    with log.open("ab") as file:
        # In a separate session, so that Ctrl-C reaches it once: a second signal would end it
        # before it has saved.
        process = subprocess.Popen(
            command, stdout=file, stderr=subprocess.STDOUT, start_new_session=True
        )
    try:
        return process.wait()
    except BaseException:
        process.terminate()
        process.wait()
        raise
