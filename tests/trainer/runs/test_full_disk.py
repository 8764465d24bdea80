"""A full disk: a save is done later, and the run that cannot continue names its last checkpoint."""

from __future__ import annotations

import os
import shutil
import threading
from contextlib import ExitStack, suppress
from pathlib import Path
from types import SimpleNamespace

import pytest

from mmr1.config import Config
from mmr1.files import append
from mmr1.trainer.models.state import Digests
from mmr1.trainer.run import Run, to_the_end
from mmr1.trainer.runs.checkpoint import Checkpoints, DiskFullError, verify_checkpoint
from mmr1.trainer.runs.step import Step
from mmr1.trainer.runs.tracking import Trackers
from mmr1.types import StepStats
from mmr1.vision.prepare import MediaCache
from tests.faults import faults_told


def fill(disk: Path) -> Path:
    """Leave no byte free; what it returns may be removed."""
    filler = disk / "filler"
    with suppress(OSError), filler.open("wb", buffering=0) as file:
        while True:
            file.write(bytes(512))
    assert shutil.disk_usage(disk).free == 0
    return filler


def test_what_a_full_disk_cuts_off_is_taken_back(small_disk):
    disk = small_disk(64)
    append(disk / "rows", b"first\n")
    filler = disk / "filler"
    filler.write_bytes(bytes(32 << 10))
    with pytest.raises(OSError, match="No space left"):
        append(disk / "rows", bytes(64 << 10))
    assert (disk / "rows").read_bytes() == b"first\n"


STEPS = [Step(number, {"step": number}) for number in (1, 2, 3, 4)]


def write_64_kib(step: int, folder: Path) -> Digests:
    (folder / "weights").write_bytes(os.urandom(64 << 10))
    return {}


def run(disk: Path, record, background: bool) -> Path:
    """Take the steps, with ``record`` in the place of what writes metrics."""
    settings = {"max_steps": 4, "checkpoints": {"save_steps": 1}}
    config = Config(model={"path": "x"}, trainer=settings)
    checkpoints = Checkpoints(disk / "checkpoints", 2, None, background)

    def log(stats: StepStats) -> None:
        checkpoints.wait()  # so that a save in the background meets the disk of its own step
        record(STEPS[int(stats["step"]) - 1])

    directory = SimpleNamespace(checkpoints=checkpoints, log=log, log_dropped=lambda rows: None)
    display = SimpleNamespace(show=lambda step: None)
    trackers, media = Trackers(config, disk), MediaCache(lambda ref: None)
    own = Run(config, directory, trackers, display, media, (), 1, ExitStack())
    try:
        return to_the_end(own.take(STEPS, lambda step: lambda f: write_64_kib(step, f)))
    finally:
        checkpoints.close()


@pytest.mark.parametrize("background", [False, True])
def test_a_save_that_a_full_disk_refuses_is_done_by_the_next_one(background, small_disk):
    disk = small_disk(1024)
    fillers = {}

    def record(step: Step) -> None:
        if step.number == 2:
            fillers["one"] = fill(disk)
        if step.number == 4:
            fillers.pop("one").unlink()

    with faults_told() as told:
        last = run(disk, record, background)
    assert last.name == "step_000004"
    verify_checkpoint(last)
    kept = sorted(path.name for path in (disk / "checkpoints").iterdir())
    assert kept == ["step_000001", "step_000004"]
    assert told.counts() == {"checkpoint/disk_full": 2}
    assert "because the disk is full" in told.faults[0][2]


@pytest.mark.parametrize("background", [False, True])
def test_the_last_save_is_tried_until_there_is_space(background, small_disk, monkeypatch):
    monkeypatch.setattr("mmr1.trainer.run.RETRY_S", 0.01)
    disk = small_disk(1024)

    def record(step: Step) -> None:
        if step.number == 4:
            threading.Timer(0.3, fill(disk).unlink).start()

    with faults_told() as told:
        last = run(disk, record, background)
    verify_checkpoint(last)
    assert last.name == "step_000004"
    assert told.counts() == {"checkpoint/disk_full": 1}  # however many attempts


def test_a_disk_that_stays_full_ends_the_run_and_the_checkpoint_before_is_whole(
    small_disk, monkeypatch
):
    monkeypatch.setattr("mmr1.trainer.run.RETRY_S", 0.01)
    monkeypatch.setattr("mmr1.trainer.run.LAST_SAVE_S", 0.05)
    disk = small_disk(1024)
    last = r"last checkpoint is \S+step_000002: .*--resume"
    with pytest.raises(DiskFullError, match=rf"step_000004 could not .*No space left.*{last}"):
        run(disk, lambda step: step.number == 3 and fill(disk), False)
    left = sorted((disk / "checkpoints").iterdir())
    assert [path.name for path in left] == ["step_000001", "step_000002"]
    verify_checkpoint(left[-1])


def test_a_disk_that_is_full_for_metrics_names_the_last_checkpoint(small_disk):
    disk = small_disk(1024)

    def record(step: Step) -> None:
        if step.number == 3:
            fill(disk)
        append(disk / "metrics", b"%d\n" % step.number * 1000)

    last = r"The last checkpoint is \S+step_000002: free some space"
    with pytest.raises(DiskFullError, match=rf"metrics .* of step 3 .*No space left.*{last}"):
        run(disk, record, False)
