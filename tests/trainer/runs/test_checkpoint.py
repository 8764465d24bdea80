"""Checkpoints against kills, full disks and damage: one whole checkpoint is always there."""

from __future__ import annotations

import hashlib
import os
import pickle
import resource
import shutil
import signal
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoProcessor

from mmr1.config import ModelConfig, OptimizerConfig
from mmr1.trainer.models.loading import load_model
from mmr1.trainer.models.optimizer import Optimizer
from mmr1.trainer.models.state import Digests, WriteCheckpoint, load_progress, model_snapshot
from mmr1.trainer.runs.checkpoint import (
    CheckpointError,
    Checkpoints,
    DamagedCheckpointError,
    DiskFullError,
    checkpoints,
    latest_valid_checkpoint,
    prune,
    verify_checkpoint,
    write_checkpoint,
)

FILES = {"config.json": b"{}", "training/state.json": b'{"step": 1}'}


def write_files(folder: Path) -> Digests:
    for name, content in FILES.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_bytes(content)
    save_file({"weight": torch.arange(64.0)}, folder / "model.safetensors")
    return {}


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
    with pytest.raises(ValueError, match=r"pytorch_model.bin is a pickle"):
        latest_valid_checkpoint(tmp_path)
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize("name", ["notes.txt", "training/optimizer/stray.safetensors"])
def test_a_file_that_the_manifest_does_not_name_is_damage(name, tmp_path):
    checkpoint = write_checkpoint(tmp_path, 1, write_files)
    (checkpoint / name).parent.mkdir(exist_ok=True)
    save_file({"weight": torch.zeros(64)}, checkpoint / name)
    with pytest.raises(DamagedCheckpointError, match=f"does not name: {name}"):
        verify_checkpoint(checkpoint)
    (checkpoint / name).unlink()
    verify_checkpoint(checkpoint)


def test_so_is_a_link_to_a_folder(tmp_path):
    checkpoint = write_checkpoint(tmp_path / "run", 1, write_files)
    (tmp_path / "elsewhere").mkdir()
    (checkpoint / "training/reference").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(DamagedCheckpointError, match="does not name: training/reference"):
        verify_checkpoint(checkpoint)


def test_a_renamed_checkpoint_is_not_that_of_another_step(tmp_path):
    older = write_checkpoint(tmp_path, 2, write_files)
    write_checkpoint(tmp_path, 3, write_files).rename(tmp_path / "step_000009")
    warnings: list[str] = []
    assert latest_valid_checkpoint(tmp_path, warnings.append) == older
    assert "step_000009 was written as step 3" in warnings[0]


def test_the_latest_is_that_of_the_highest_step(tmp_path):
    write_checkpoint(tmp_path, 999_999, write_files)
    assert latest_valid_checkpoint(tmp_path) == tmp_path / "step_999999"
    write_checkpoint(tmp_path, 1_000_000, write_files)
    assert latest_valid_checkpoint(tmp_path) == tmp_path / "step_1000000"


def test_where_all_are_damaged_none_is_touched_and_each_is_named(tmp_path):
    for step in (1, 2):
        (write_checkpoint(tmp_path, step, write_files) / "config.json").write_text("[]")
    with pytest.raises(ValueError, match=r"step_000002/config.*step_000001/config.*output_dir"):
        latest_valid_checkpoint(tmp_path)
    assert [path.name for path in checkpoints(tmp_path)] == ["step_000001", "step_000002"]
    for checkpoint in checkpoints(tmp_path):
        checkpoint.rename(checkpoint.with_suffix(".damaged"))
    with pytest.raises(ValueError, match=r"step_000001.damaged was set aside before"):
        latest_valid_checkpoint(tmp_path)


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
    def big(folder: Path) -> Digests:
        write_files(folder)
        save_file({"weight": torch.zeros(50_000)}, folder / "model.safetensors")
        return {}

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


def model_files(tiny_model: Path) -> WriteCheckpoint:
    """What a run writes for its policy: model, tokenizer, processor, optimizer, generators."""
    model = load_model(ModelConfig(path=str(tiny_model), dtype="float32"))
    processor = AutoProcessor.from_pretrained(tiny_model)
    optimizer = Optimizer(model, OptimizerConfig(), steps=1)
    return model_snapshot(model, processor, optimizer)


def test_a_disk_that_fills_up_during_any_file_is_left_as_it_was(tiny_model, tmp_path, small_disk):
    write_model = model_files(tiny_model)
    sample = write_checkpoint(tmp_path / "sample", 1, write_model)
    ends = [0]
    for path in sorted(
        (p for p in sample.rglob("*") if p.is_file()), key=lambda p: p.stat().st_mtime_ns
    ):
        ends.append(ends[-1] + path.stat().st_size)
    shutil.rmtree(tmp_path / "sample")
    for begin, end in pairwise(ends):
        disk = small_disk(max(200, (begin + end) // 2 // 1024))
        write_checkpoint(disk, 1, write_files)
        with pytest.raises(DiskFullError, match=r"step_000002 could not .*No space left") as full:
            write_checkpoint(disk, 2, write_model)
        assert "\n" not in str(full.value)
        assert [path.name for path in disk.iterdir()] == ["step_000001"]
        verify_checkpoint(disk / "step_000001")


def test_a_disk_that_cannot_be_written_to_is_one_line(tmp_path, small_disk):
    disk = small_disk(1000)
    write_checkpoint(disk, 1, write_files)
    subprocess.run(["mount", "-o", "remount,ro", str(disk)], check=True)
    with pytest.raises(CheckpointError, match=r"step_000002 could not .*Read-only file system"):
        write_checkpoint(disk, 2, write_files)
    (tmp_path / "checkpoints").write_text("")
    with pytest.raises(CheckpointError, match=r"step_000002 could not .*Not a directory"):
        write_checkpoint(tmp_path / "checkpoints", 2, write_files)


def test_a_mistake_of_the_code_is_no_full_disk_and_leaves_nothing(tmp_path):
    def broken(folder: Path) -> Digests:
        write_files(folder)
        raise TypeError("a mistake")

    with pytest.raises(TypeError, match="a mistake"):
        write_checkpoint(tmp_path, 1, broken)
    assert not list(tmp_path.iterdir())


def test_a_file_of_a_rank_that_is_not_there_is_told(tmp_path):
    """The rank wrote it on the disk of its own node."""

    def write(folder: Path) -> Digests:
        write_files(folder)
        return {"training/optimizer/shard-00002.safetensors": "0" * 64}

    with pytest.raises(CheckpointError, match=r"shard-00002\S* was written by a rank .* share"):
        write_checkpoint(tmp_path, 1, write)
    assert not list(tmp_path.iterdir())


def test_the_last_and_the_best_are_kept(tmp_path):
    for step, reward in enumerate((0.1, 0.9, 0.3, 0.2), start=1):
        write_checkpoint(tmp_path, step, write_files, {"reward/mean": reward})
    prune(tmp_path, keep=2, best_by="reward/mean")
    assert [p.name for p in checkpoints(tmp_path)] == ["step_000002", "step_000003", "step_000004"]
    prune(tmp_path, keep=2)
    assert [p.name for p in checkpoints(tmp_path)] == ["step_000003", "step_000004"]


def test_saving_in_the_background_tells_of_its_failure_at_the_next_save(tmp_path):
    def broken(folder: Path) -> Digests:
        raise OSError("no space left")

    saving = Checkpoints(tmp_path, keep=2, in_background=True)
    saving.save(1, write_files, {})
    assert saving.wait() == tmp_path / "step_000001"
    saving.save(2, broken, {})
    with pytest.raises(CheckpointError, match="no space left"):
        saving.save(3, write_files, {})
    assert latest_valid_checkpoint(tmp_path) == tmp_path / "step_000001"


def test_a_checkpoint_of_another_version_is_not_damage_but_refused(tmp_path):
    """All are left where they are, and the message says what to do."""
    for step in (1, 2):
        checkpoint = write_checkpoint(tmp_path, step, write_files)
        manifest = checkpoint / "manifest.json"
        manifest.write_text(manifest.read_text().replace('"version": 1', '"version": 0'))
        digest = hashlib.sha256(manifest.read_bytes()).hexdigest()
        (checkpoint / "manifest.sha256").write_text(f"{digest}  manifest.json\n")
    with pytest.raises(ValueError, match=r"written by another version of mmr1 \(its manifest is"):
        latest_valid_checkpoint(tmp_path)
    assert [path.name for path in checkpoints(tmp_path)] == ["step_000001", "step_000002"]


def test_a_checkpoint_without_the_state_of_a_component_is_refused(tmp_path):
    """As one has that was written before there was such a component."""
    checkpoint = write_checkpoint(tmp_path, 1, write_files)
    with pytest.raises(ValueError, match="has no state of 'sampler': another version of mmr1"):
        load_progress(checkpoint, {"sampler": RefusedLoading()})


class RefusedLoading:
    def state_dict(self) -> dict[str, object]:
        raise AssertionError

    def load_state_dict(self, state: object) -> None:
        raise AssertionError
