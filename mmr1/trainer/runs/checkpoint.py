"""Atomic checkpoints with a manifest of digests.

A checkpoint ``step_N`` is first written as ``step_N.tmp``: the files, then a manifest with the
digest of each; ranks tell the digests of theirs. Everything is synced to the disk. Then the folder
is renamed and its parent synced, and only then are older checkpoints removed. So a kill at any
moment leaves a complete checkpoint. Loading takes the latest checkpoint whose files are exactly
those of its manifest: a file that the manifest does not name is damage too. Checkpoints contain no
pickles; one with a pickle is refused.
"""

from __future__ import annotations

import errno
import json
import logging
import os
import re
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

from safetensors import SafetensorError

from mmr1.config import TrainerConfig
from mmr1.config.run_folder import RESUME
from mmr1.files import sha256_of
from mmr1.logs import report_fault
from mmr1.trainer.models.state import Digests, WriteCheckpoint, sync

logger = logging.getLogger(__name__)

MANIFEST = "manifest.json"
MANIFEST_DIGEST = "manifest.sha256"
VERSION = 1
"""Of the layout of checkpoints."""
_STEP_NAME = re.compile(r"step_\d+")
_PICKLES = {".pkl", ".pickle", ".pt", ".pth", ".bin", ".ckpt"}


class CheckpointError(RuntimeError):
    """A checkpoint could not be written; older ones are unchanged."""


class DamagedCheckpointError(RuntimeError):
    """A checkpoint differs from its manifest."""


def write_checkpoint(
    folder: Path,
    step: int,
    write_files: WriteCheckpoint,
    metrics: Mapping[str, float] | None = None,
) -> Path:
    """Write ``folder/step_N`` completely or not at all; ``metrics`` go into its manifest.

    Raises:
        CheckpointError: Writing failed.
        DiskFullError: If the disk is full.

    Whatever is raised, the unfinished folder is removed.
    """
    target = folder / f"step_{step:06d}"
    temporary = target.with_name(target.name + ".tmp")
    try:
        shutil.rmtree(temporary, ignore_errors=True)
        temporary.mkdir(parents=True)
        digests = write_files(temporary)
        _seal(temporary, step, metrics or {}, digests)
        temporary.replace(target)
        sync(folder)
    except BaseException as error:
        shutil.rmtree(temporary, ignore_errors=True)
        if not _is_write_error(error):
            raise
        kind = DiskFullError if is_full(error) else CheckpointError
        raise kind(
            f"{target} could not be written ({_first_line(error)}). "
            f"{name_last(max(checkpoints(folder), key=step_of, default=None))}: free some space or "
            f"repair the disk, then continue with {RESUME}"
        ) from error
    return target


def verify_checkpoint(checkpoint: Path) -> dict[str, Any]:
    """Compare every file with the manifest, and return the manifest.

    Raises:
        DamagedCheckpointError: Names the file and what is wrong with it.
    """
    paths = list(_files(checkpoint))
    for path in paths:
        if path.suffix in _PICKLES:
            raise DamagedCheckpointError(f"{path} is a pickle, which could run code; not loaded")
    manifest = _manifest(checkpoint)
    _refuse_another_step(checkpoint, manifest)
    _refuse_extra_files(checkpoint, paths, manifest)
    for name, entry in manifest["files"].items():
        path = checkpoint / name
        if not path.is_file():
            raise DamagedCheckpointError(f"{path} is missing")
        if (path.stat().st_size, _digest(path)) != (entry["size"], entry["sha256"]):
            raise DamagedCheckpointError(f"{path} is not what was written (its digest differs)")
    return manifest


def latest_valid_checkpoint(
    folder: Path, warn: Callable[[str], None] = lambda line: None
) -> Path | None:
    """The latest undamaged checkpoint, or None if the run has written none.

    ``warn`` gets a line for each damaged one after it. Damaged checkpoints are renamed to
    ``step_N.damaged`` and unfinished ones removed, so that the resumed run can write these steps
    again.

    Raises:
        ValueError: If the run has checkpoints and all are damaged; none was renamed.
    """
    for unfinished in folder.glob("step_*.tmp"):
        shutil.rmtree(unfinished)
    damages: dict[Path, DamagedCheckpointError] = {}
    for checkpoint in reversed(checkpoints(folder)):
        try:
            verify_checkpoint(checkpoint)
        except DamagedCheckpointError as error:
            damages[checkpoint] = error
            continue
        for damaged, damage in damages.items():
            warn(f"warning: {damage}; going back to the checkpoint before it")
            report_fault(logger, "checkpoint/damaged", str(damage), level=logging.INFO)
            _set_aside(damaged)
        return checkpoint
    _refuse_only_damaged(folder, damages)
    return None


def checkpoints(folder: Path) -> list[Path]:
    """The finished checkpoints of a run, oldest first."""
    return sorted((p for p in folder.glob("step_*") if _STEP_NAME.fullmatch(p.name)), key=step_of)


def name_last(checkpoint: Path | None) -> str:
    """A sentence that names the last checkpoint."""
    there = checkpoint is not None and checkpoint.exists()
    return f"The last checkpoint is {checkpoint}" if there else "There is no checkpoint"


def next_due(config: TrainerConfig, step: int) -> int:
    """The first step, at or after ``step``, at whose end a checkpoint is due."""
    every = config.save_steps or config.steps
    return min(-(-step // every) * every, config.steps)


def step_of(checkpoint: Path) -> int:
    """The step after which a checkpoint was written."""
    return int(checkpoint.name.removeprefix("step_"))


def prune(folder: Path, keep: int, best_by: str | None = None) -> None:
    """Remove all but the last ``keep`` checkpoints and the one with the highest ``best_by``."""
    existing = checkpoints(folder)
    to_keep = set(existing[-keep:])
    if best_by is not None:
        to_keep.add(max(existing, key=lambda c: _metric(c, best_by)))
    for checkpoint in existing:
        if checkpoint not in to_keep:
            # Renamed first, so that a kill here does not leave a checkpoint that looks damaged.
            temporary = checkpoint.with_name(checkpoint.name + ".tmp")
            checkpoint.replace(temporary)
            shutil.rmtree(temporary)


class Checkpoints:
    """Writes the checkpoints of a run, at once or in a thread, and removes old ones.

    A full disk is a fault and not an error, because a later save may do better.

    Args:
        folder: Where they are written.
        keep: How many of the latest to keep, 2 or more.
        best_by: A metric; the checkpoint with its highest value is kept too.
        in_background: Write in a thread; ``save`` then waits only for the save before it.

    Attributes:
        last: The last checkpoint.
        unsaved: Why there is none of the last ``save``, if the disk was full; else None.
    """

    def __init__(
        self,
        folder: Path,
        keep: int,
        best_by: str | None = None,
        in_background: bool = False,
    ) -> None:
        self._folder, self._keep, self._best_by = folder, keep, best_by
        self._thread = ThreadPoolExecutor(1, "checkpoint") if in_background else None
        self._writing: Future[None] | None = None
        self.last: Path | None = None
        self.unsaved: DiskFullError | None = None
        self._reported: int | None = None  # the step whose save met a full disk

    def save(self, step: int, write_files: WriteCheckpoint, metrics: Mapping[str, float]) -> None:
        """Write the checkpoint of ``step``.

        Raises:
            CheckpointError: This checkpoint could not be written, or in the background the one
                before.
        """
        self.wait()
        if self._thread is None:
            self._write(step, write_files, metrics)
        else:
            self._writing = self._thread.submit(self._write, step, write_files, dict(metrics))

    def wait(self) -> Path | None:
        """Wait for the checkpoint that is being written; returns the last one there is."""
        if self._writing is not None:
            writing, self._writing = self._writing, None
            writing.result()
        return self.last

    def close(self) -> None:
        """Wait for the thread; ``wait`` raises its error, this does not."""
        if self._thread is not None:
            self._thread.shutdown()

    def _write(self, step: int, write_files: WriteCheckpoint, metrics: Mapping[str, float]) -> None:
        try:
            self.last = write_checkpoint(self._folder, step, write_files, metrics)
        except DiskFullError as error:
            self.unsaved = error
            self._report_full(step, _first_line(error.__cause__ or error))
            return
        self.unsaved = None
        prune(self._folder, self._keep, self._best_by)

    def _report_full(self, step: int, reason: str) -> None:
        """Report a full disk once for each step: further attempts are not news."""
        if step == self._reported:
            return
        self._reported = step
        report_fault(
            logger,
            "checkpoint/disk_full",
            f"step {step} could not be saved, because the disk is full ({reason}). "
            f"{name_last(self.last)}. The run saves again when the next checkpoint is due; free "
            "some space",
        )


def _is_write_error(error: BaseException) -> bool:
    """True if the disk refused, rather than the code failed. tokenizers raises plain exceptions."""
    return isinstance(error, OSError | SafetensorError) or (
        type(error) is Exception and "(os error " in str(error)
    )


def _first_line(error: BaseException) -> str:
    """The first line of an error; that of a Ray actor has its traceback in further lines."""
    cause = getattr(error, "cause", error)
    return str(cause).strip().partition("\n")[0] or type(error).__name__


def _refuse_another_step(checkpoint: Path, manifest: Mapping[str, Any]) -> None:
    """Refuse a renamed checkpoint, which would resume with the numbers of another step."""
    if _STEP_NAME.fullmatch(checkpoint.name) and step_of(checkpoint) != manifest["step"]:
        raise DamagedCheckpointError(
            f"{checkpoint} was written as step {manifest['step']} (its folder was renamed)"
        )


def _refuse_extra_files(
    checkpoint: Path, paths: Iterable[Path], manifest: Mapping[str, Any]
) -> None:
    """Refuse stray files, which could be loaded in the place of one that was written."""
    names = {str(path.relative_to(checkpoint)) for path in paths}
    if extra := sorted(names - {MANIFEST, MANIFEST_DIGEST} - set(manifest["files"])):
        more = f" and {len(extra) - 3} more" if len(extra) > 3 else ""
        raise DamagedCheckpointError(
            f"{checkpoint} has files that its manifest does not name: {', '.join(extra[:3])}{more} "
            "(move them elsewhere to use it)"
        )


def _refuse_only_damaged(folder: Path, damages: Mapping[Path, DamagedCheckpointError]) -> None:
    """Refuse to start again at step 0, which would throw the run away."""
    reasons = [str(damage) for damage in damages.values()]
    reasons += [f"{path} was set aside before" for path in sorted(folder.glob("step_*.damaged"))]
    if reasons:
        raise ValueError(
            f"{folder} has no undamaged checkpoint to resume from: {'; '.join(reasons)}. Repair "
            "one, or start anew with another trainer.output_dir; nothing was changed"
        )


def _set_aside(checkpoint: Path) -> None:
    damaged = checkpoint.with_name(checkpoint.name + ".damaged")
    shutil.rmtree(damaged, ignore_errors=True)
    checkpoint.replace(damaged)


def _seal(folder: Path, step: int, metrics: Mapping[str, float], digests: Digests) -> None:
    """Sync all files, then list them with their digests.

    Args:
        digests: Digests that are known; such a file is not read.

    Raises:
        CheckpointError: If one of the files is not in the folder.
    """
    paths = {str(path.relative_to(folder)): path for path in _files(folder)}
    if missing := sorted(digests.keys() - paths.keys()):
        raise CheckpointError(
            f"{folder / missing[0]} was written by a rank but is not there: put "
            "trainer.output_dir on a file system that all nodes share"
        )
    files = {}
    for name, path in paths.items():
        sync(path)
        sha256 = digests[name] if name in digests else _digest(path)
        files[name] = {"size": path.stat().st_size, "sha256": sha256}
    manifest = folder / MANIFEST
    content = {"version": VERSION, "step": step, "metrics": dict(metrics), "files": files}
    manifest.write_text(json.dumps(content, indent=1) + "\n")
    digest = folder / MANIFEST_DIGEST
    digest.write_text(_digest_line(manifest))
    sync(manifest)
    sync(digest)
    for path in (*folder.rglob("*"), folder):
        if path.is_dir():
            sync(path)


def _manifest(checkpoint: Path) -> dict[str, Any]:
    path = checkpoint / MANIFEST
    try:
        if (checkpoint / MANIFEST_DIGEST).read_text() != _digest_line(path):
            raise DamagedCheckpointError(f"{path} is not what was written (its digest differs)")
        manifest: dict[str, Any] = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise DamagedCheckpointError(f"{path} cannot be read ({error})") from error
    if manifest.get("version") != VERSION:
        raise DamagedCheckpointError(
            f"{checkpoint} was written by another version of mmr1 (its manifest is of version "
            f"{manifest.get('version')}, and this one reads {VERSION}): resume with that, or start "
            "a new run with it as model.path"
        )
    return manifest


def _digest_line(path: Path) -> str:
    """A digest in the format of ``sha256sum``."""
    return f"{_digest(path)}  {path.name}\n"


def _metric(checkpoint: Path, name: str) -> float:
    try:
        return float(_manifest(checkpoint)["metrics"].get(name, float("-inf")))
    except DamagedCheckpointError:
        return float("-inf")


def _files(folder: Path) -> Iterator[Path]:
    """All files, in real folders only: a link to a folder would bring files along too."""
    return (p for p in sorted(folder.rglob("*")) if p.is_symlink() or not p.is_dir())


def _digest(path: Path) -> str:
    return sha256_of(path).hex()


_ERRNOS = (errno.ENOSPC, errno.EDQUOT)


class DiskFullError(RuntimeError):
    """The disk is full. The message names the last checkpoint."""


def is_full(error: BaseException | None) -> bool:
    """True for the system's error of a full disk or quota, and for one that was raised from it.

    Libraries in Rust, and Ray, keep only its text.
    """
    while error is not None:
        texts = (os.strerror(number) for number in _ERRNOS)
        if getattr(error, "errno", None) in _ERRNOS or any(text in str(error) for text in texts):
            return True
        error = error.__cause__
    return False
