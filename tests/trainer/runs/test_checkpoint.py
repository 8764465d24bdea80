"""Checkpoints against kills, full disks and damage: one whole checkpoint is always there."""

from __future__ import annotations

import os
import pickle
import resource
import shutil
import signal
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from mmr1.trainer.runs.checkpoint import (
    CheckpointError,
    Checkpoints,
    DamagedCheckpointError,
    checkpoints,
    latest_valid_checkpoint,
    prune,
    verify_checkpoint,
    write_checkpoint,
)

FILES = {"config.json": b"{}", "training/state.json": b'{"step": 1}'}


def write_files(folder: Path) -> None:
    for name, content in FILES.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_bytes(content)
    save_file({"weight": torch.arange(64.0)}, folder / "model.safetensors")


def test_what_is_written_is_whole_and_reads_back(tmp_path):
    checkpoint = write_checkpoint(tmp_path, 7, write_files, {"reward/mean": 0.5})
    assert checkpoint == tmp_path / "step_000007"
    verify_checkpoint(checkpoint)
    assert latest_valid_checkpoint(tmp_path) == checkpoint
    assert torch.equal(load_file(checkpoint / "model.safetensors")["weight"], torch.arange(64.0))


def is_whole(checkpoint: Path) -> bool:
    try:
        verify_checkpoint(checkpoint)
    except DamagedCheckpointError:
        return False
    return True


def damages(checkpoint: Path) -> list[tuple[str, Path, bytes | None]]:
    """Every file removed, emptied, cut in half, and with single bits flipped all over it."""
    cases: list[tuple[str, Path, bytes | None]] = []
    for path in sorted(p for p in checkpoint.rglob("*") if p.is_file()):
        whole = path.read_bytes()
        cases += [
            ("gone", path, None),
            ("empty", path, b""),
            ("cut", path, whole[: len(whole) // 2]),
        ]
        for place in range(0, len(whole), max(1, len(whole) // 40)):
            flipped = bytearray(whole)
            flipped[place] ^= 1 << place % 8
            cases.append((f"bit {place % 8} of byte {place}", path, bytes(flipped)))
    return cases


def test_any_damage_to_any_file_is_noticed_and_the_one_before_is_taken(tmp_path):
    older = write_checkpoint(tmp_path, 1, write_files)
    newest = write_checkpoint(tmp_path, 2, write_files)
    tried = 0
    for what, path, content in damages(newest):
        whole = path.read_bytes()
        path.unlink() if content is None else path.write_bytes(content)
        assert not is_whole(newest), f"{path.name} {what}: unnoticed"
        path.write_bytes(whole)
        tried += 1
    assert tried > 100
    verify_checkpoint(newest)
    (newest / "model.safetensors").write_bytes(b"")
    warnings: list[str] = []
    assert latest_valid_checkpoint(tmp_path, warnings.append) == older
    assert "model.safetensors" in warnings[0]
    assert (tmp_path / "step_000002.damaged").is_dir()  # out of the way of the step's next saving


def test_a_pickle_is_refused_and_never_run(tmp_path):
    class Payload:
        def __reduce__(self):
            return (os.system, (f"touch {tmp_path / 'ran'}",))

    checkpoint = write_checkpoint(tmp_path, 1, write_files)
    (checkpoint / "pytorch_model.bin").write_bytes(pickle.dumps(Payload()))
    with pytest.raises(DamagedCheckpointError, match=r"pytorch_model.bin is a pickle"):
        verify_checkpoint(checkpoint)
    assert latest_valid_checkpoint(tmp_path) is None
    assert not (tmp_path / "ran").exists()


FILE_EVENTS = {"open", "os.rename", "os.mkdir", "os.remove", "os.rmdir", "os.scandir"}


def save_until(folder: Path, fatal: int) -> int:
    """Save step 3 over steps 1 and 2 in a process killed at its ``fatal``-th file operation.

    Returns the number of operations that a save and the pruning after it have, if it lived.
    """
    for old in folder.glob("*"):
        shutil.rmtree(old)
    write_checkpoint(folder, 1, write_files)
    write_checkpoint(folder, 2, write_files)
    reader, writer = os.pipe()
    if (child := os.fork()) == 0:
        operations = 0
        fsync = os.fsync

        def count() -> None:
            nonlocal operations
            operations += 1
            if operations == fatal:
                os.kill(os.getpid(), signal.SIGKILL)

        def counted_fsync(descriptor: int) -> None:
            count()
            fsync(descriptor)

        os.fsync = counted_fsync
        sys.addaudithook(lambda event, args: count() if event in FILE_EVENTS else None)
        write_checkpoint(folder, 3, write_files)
        prune(folder, 2)
        os.write(writer, str(operations).encode())
        os._exit(0)
    os.close(writer)
    _, status = os.waitpid(child, 0)
    with os.fdopen(reader) as pipe:
        operations = int(pipe.read() or 0)
    assert os.waitstatus_to_exitcode(status) == (0 if operations else -signal.SIGKILL)
    return operations


def still_good(folder: Path) -> int:
    """The step of the newest whole checkpoint; there must be one, and a save must work after it."""
    checkpoint = latest_valid_checkpoint(folder)
    assert checkpoint is not None
    verify_checkpoint(checkpoint)
    assert not list(folder.glob("*.tmp"))
    assert not list(folder.glob("*.damaged")), "a kill must not leave a half-removed checkpoint"
    write_checkpoint(folder, 4, write_files)
    return int(checkpoint.name.removeprefix("step_"))


def test_killed_at_any_file_operation_of_a_save_a_whole_checkpoint_is_left(tmp_path):
    operations = save_until(tmp_path, 0)
    assert operations > 30
    steps = []
    for fatal in range(1, operations + 1):
        assert save_until(tmp_path, fatal) == 0
        steps.append(still_good(tmp_path))
    assert set(steps) == {2, 3}  # killed before the rename, and after it
    assert steps == sorted(steps)


def test_a_full_disk_at_any_write_leaves_the_older_ones_and_says_so(tmp_path):
    def big(folder: Path) -> None:
        write_files(folder)
        save_file({"weight": torch.zeros(50_000)}, folder / "model.safetensors")

    older = write_checkpoint(tmp_path, 1, write_files)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    try:
        for limit in (0, 5, 100, 150_000):  # the first file, the second, the third, ...
            resource.setrlimit(resource.RLIMIT_FSIZE, (limit, hard))
            with pytest.raises(
                CheckpointError, match=r"step_000002 could not be written .* --resume"
            ):
                write_checkpoint(tmp_path, 2, big)
            assert [p.name for p in tmp_path.iterdir()] == [older.name]
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    verify_checkpoint(older)


def test_the_last_and_the_best_are_kept(tmp_path):
    for step, reward in enumerate((0.1, 0.9, 0.3, 0.2), start=1):
        write_checkpoint(tmp_path, step, write_files, {"reward/mean": reward})
    prune(tmp_path, keep=2, best_by="reward/mean")
    assert [p.name for p in checkpoints(tmp_path)] == ["step_000002", "step_000003", "step_000004"]
    prune(tmp_path, keep=2)
    assert [p.name for p in checkpoints(tmp_path)] == ["step_000003", "step_000004"]


def test_saving_in_the_background_tells_of_its_failure_at_the_next_save(tmp_path):
    def broken(folder: Path) -> None:
        raise OSError("no space left")

    saving = Checkpoints(tmp_path, keep=2, in_background=True)
    saving.save(1, write_files, {})
    assert saving.wait() == tmp_path / "step_000001"
    saving.save(2, broken, {})
    with pytest.raises(CheckpointError, match="no space left"):
        saving.save(3, write_files, {})
    assert latest_valid_checkpoint(tmp_path) == tmp_path / "step_000001"
