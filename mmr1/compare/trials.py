"""The runs of a comparison: one after the other, each in a process of its own."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from mmr1.compare.metrics import curve_of, value_of
from mmr1.compare.plan import Arm, Plan
from mmr1.config import Config
from mmr1.trainer.runs.checkpoint import step_of
from mmr1.trainer.runs.existing import check_directory
from mmr1.trainer.runs.output import finished


@dataclass(frozen=True, slots=True)
class Trial:
    """What one arm gave with one seed.

    Attributes:
        values: Of each metric, by its name in tables.
        curves: Means over the tenths of the run, of those metrics that steps have.
    """

    arm: str
    seed: int
    values: dict[str, float]
    curves: dict[str, tuple[float, ...]]


def run_trials(
    plan: Plan, seeds: int, output: Path, say: Callable[[str], None] = print
) -> list[Trial]:
    """Run every arm with every seed; what is finished is not repeated, what was stopped resumes.

    Raises:
        ValueError: A folder holds another run, or a run has no such metric.
        RuntimeError: A run failed; names its log.
    """
    trials = []
    for seed in range(seeds):
        for arm in plan.arms:
            folder = _ran(arm, seed, output, say)
            values = {name: value_of(folder, metric) for name, metric in plan.metrics.items()}
            curves = {name: curve_of(folder, metric) for name, metric in plan.drawn.items()}
            trials.append(Trial(arm.name, seed, values, curves))
    return trials


def _ran(arm: Arm, seed: int, output: Path, say: Callable[[str], None]) -> Path:
    """The folder of a finished run."""
    config, folder = arm.config(seed, output), arm.folder(seed, output)
    check_directory(config, resume=True)
    if not _is_finished(config):
        say(f"{arm.name}, seed {seed}")
        log = folder.parent / f"{folder.name}.log"
        log.parent.mkdir(parents=True, exist_ok=True)
        command = [sys.executable, "-m", "mmr1", "train", str(arm.file)]
        code = _waited_for([*command, *arm.arguments(seed, output), "--resume"], log)
        if code:
            last = (log.read_text(errors="replace").strip().splitlines() or ["no output"])[-1]
            raise RuntimeError(f"{arm.name}, seed {seed} ended with code {code}: {last} ({log})")
    return folder


def _is_finished(config: Config) -> bool:
    last = finished(config)
    if last is None:
        return False
    if config.trainer.total_epochs is None and step_of(last) > config.trainer.steps:
        raise ValueError(
            f"{last} is of a longer run than trainer.max_steps={config.trainer.steps}; name "
            "another --output"
        )
    return True


def _waited_for(command: list[str], log: Path) -> int:
    """Run it to its end. Where this process is stopped, the run saves its step before."""
    with log.open("ab") as file:
        # In a session of its own, so that Ctrl-C reaches it once: a second signal would end it
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
