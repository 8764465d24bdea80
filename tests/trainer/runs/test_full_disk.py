"""A disk that is full for a while costs nothing but the wait."""

from __future__ import annotations

import os
import shutil
import threading
from contextlib import suppress
from pathlib import Path

import pytest

from mmr1.config import Config
from mmr1.config.trainer import TrainerConfig
from mmr1.trainer.models.digests import Digests
from mmr1.trainer.run import take_steps
from mmr1.trainer.runs import full_disk
from mmr1.trainer.runs.checkpoint import CheckpointError, Checkpoints, verify_checkpoint
from mmr1.trainer.runs.full_disk import Journal, append
from mmr1.trainer.runs.output import RecordError, RunDirectory
from mmr1.trainer.runs.step import Step
from tests.faults import faults_told
from tests.jsonl import read_jsonl


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


def test_writes_wait_in_their_order_and_are_told_once(small_disk):
    disk = small_disk(64)
    journal = Journal(patience_s=600)
    filler = fill(disk)
    with faults_told() as told:
        for number in range(3):
            journal.write(lambda number=number: append(disk / "rows", b"%d\n" % number))
        assert told.counts() == {"metrics/disk_full": 1}
        assert "No space left on device: metrics and rollouts are kept" in told.faults[0][2]
        filler.unlink()
        journal.write(lambda: append(disk / "rows", b"3\n"))
        assert (disk / "rows").read_bytes() == b"0\n1\n2\n3\n"
        fill(disk)
        journal.write(lambda: append(disk / "more", b"4\n"))
        assert told.counts() == {"metrics/disk_full": 2}


def test_another_error_and_the_end_of_patience_end_the_wait(small_disk):
    disk = small_disk(64)
    (disk / "file").touch()
    with pytest.raises(FileExistsError):
        Journal(600).write(lambda: append(disk / "file/rows", b"1\n"))
    fill(disk)
    with pytest.raises(OSError, match="No space left"):
        Journal(0).write(lambda: append(disk / "rows", b"1\n"))
    journal = Journal(1e-9)
    journal.write(lambda: append(disk / "rows", b"1\n"))
    with pytest.raises(OSError, match="No space left"):
        journal.write(lambda: append(disk / "rows", b"2\n"))


def directory_on(disk: Path, **trainer: object) -> RunDirectory:
    trainer = {"output_dir": str(disk / "run"), "disk_patience_s": 600, **trainer}
    return RunDirectory(Config(model={"path": "x"}, trainer=trainer))


def test_metrics_that_wait_are_there_when_the_run_ends(small_disk, monkeypatch):
    monkeypatch.setattr(full_disk, "RETRY_S", 0.01)
    disk = small_disk(256)
    lines = [{f"metric {i}": 0.5 for i in range(1000)} | {"step": s} for s in (1, 2, 3, 4)]
    with directory_on(disk) as directory:
        directory.begin()
        directory.log(lines[0])
        filler = fill(disk)
        directory.log(lines[1])
        directory.log(lines[2])
        assert read_jsonl(directory.metrics_file) == lines[:1]
        threading.Timer(0.3, filler.unlink).start()
    assert read_jsonl(directory.metrics_file) == lines[:3]
    directory = directory_on(disk, disk_patience_s=0.05)
    directory.begin()
    fill(disk)
    directory.log(lines[3])
    with pytest.raises(RecordError, match=r"last metrics and rollouts could not .*No space left"):
        directory.__exit__(None, None, None)


STEPS = [Step(number, {"step": number}) for number in (1, 2, 3, 4)]


def write_64_kib(step: int, folder: Path) -> Digests:
    (folder / "weights").write_bytes(os.urandom(64 << 10))
    return {}


def run(disk: Path, record, background: bool, **trainer: object) -> Path:
    config = TrainerConfig(max_steps=4, save_steps=1, **trainer)
    checkpoints = Checkpoints(disk / "checkpoints", 2, None, background, patient=True)

    def record_alone(step: Step) -> None:
        checkpoints.wait()  # so that a save in the background meets the disk of its own step
        record(step)

    try:
        return take_steps(
            config,
            STEPS,
            record_alone,
            lambda step: lambda folder: write_64_kib(step, folder),
            checkpoints,
        )
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
        last = run(disk, record, background, disk_patience_s=600)
    verify_checkpoint(last)
    assert last.name == "step_000004"
    assert told.counts() == {"checkpoint/disk_full": 1}  # however many attempts


def test_past_the_patience_the_run_ends_and_the_checkpoint_before_is_whole(small_disk, monkeypatch):
    monkeypatch.setattr("mmr1.trainer.run.RETRY_S", 0.01)
    disk = small_disk(1024)
    with pytest.raises(CheckpointError, match=r"step_000004 could not .*No space left.*--resume"):
        run(disk, lambda step: step.number == 3 and fill(disk), False, disk_patience_s=0.05)
    left = sorted((disk / "checkpoints").iterdir())
    assert [path.name for path in left] == ["step_000001", "step_000002"]
    verify_checkpoint(left[-1])
