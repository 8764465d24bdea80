"""Checkpoint state: everything that a resumed run needs to reach the same numbers.

A checkpoint is an ordinary Hugging Face model directory with one folder more::

    step_000200/
        config.json, model.safetensors, tokenizer.json, ...
        adapter/              where the policy is adapters: they, unmerged, as peft loads them
        training/optimizer/   float32 weights and AdamW's moments, by torch's distributed
                              checkpointing in safetensors: any number of ranks reads them
        training/rng/         state of torch's generators, one file a rank
        training/critic/      the critic's weights and moments, where there is one
        training/reference/   the reference policy, where it is refreshed as training continues
        training/state.json   step, sampler, coefficients, what the algorithm carries along
        manifest.json         digests of all that; see checkpoint.py
"""

from __future__ import annotations

import json
import os
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import torch
import torch.distributed.checkpoint as dcp
from safetensors.torch import load_file, save_file
from torch.distributed.checkpoint.api import CheckpointException

from mmr1.files import sha256_of
from mmr1.trainer.forward.micro_batches import ProcessGroup, SingleProcess
from mmr1.trainer.models.hub_files import save_pretrained
from mmr1.trainer.models.optimizer import Optimizer
from mmr1.trainer.models.streaming import StreamingWriter
from mmr1.trainer.models.weights import copy_on_first, model_adapters, model_weights

Digests = dict[str, str]
"""SHA-256 in hexadecimal of files of a checkpoint, by their paths in its folder."""


def sync_and_digest(folder: Path, paths: Iterable[Path]) -> Digests:
    """Bring files below ``folder`` to the disk; returns their digests."""
    digests = {}
    for path in paths:
        sync(path)
        digests[str(path.relative_to(folder))] = sha256_of(path).hex()
    return digests


def sync(path: Path) -> None:
    """Bring a file, or the names in a folder, to the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


TRAINING = "training"

WriteCheckpoint = Callable[[Path], Digests]
"""Writes files of a checkpoint into the folder it is given. Returns the digests of those that it
has read again; the others' are taken when the checkpoint is closed."""


class HasState(Protocol):
    """Something whose state is a few JSON values."""

    def state_dict(self) -> dict[str, Any]: ...

    def load_state_dict(self, state: Any) -> None: ...


@dataclass(frozen=True, slots=True)
class ModelSnapshot:
    """The present or a copied state of a model and its optimizer; a ``WriteCheckpoint``.

    Attributes:
        weights, adapters: Weights and adapters of the model.
        tensors: The optimizer's; None in a checkpoint without ``training/``.
        rng: The state of the generators.
    """

    model: Any
    processor: Any
    weights: Mapping[str, torch.Tensor]
    adapters: Mapping[str, torch.Tensor]
    tensors: Mapping[str, torch.Tensor] | None
    rng: Mapping[str, torch.Tensor]
    process_group: ProcessGroup

    def __call__(self, folder: Path) -> Digests:
        rank, written = self.process_group.rank, list[Path]()
        training = folder / TRAINING
        failure: Exception | None = None
        try:
            save_pretrained(self.model, folder, self.weights, self.adapters, writes=rank == 0)
            if rank == 0:
                self.processor.save_pretrained(folder)
                files = (path for path in folder.rglob("*") if path.is_file())
                written += (path for path in files if training not in path.parents)  # other ranks'
        except Exception as error:
            failure = error  # of rank 0's disk: the other ranks wait for it below
        if self.tensors is not None:
            saving = self.process_group.saving
            written += save_tensors(training / "optimizer", self.tensors, saving)
            written.append(_save_rng(training / "rng", self.rng, rank))
        if failure is not None:
            raise failure
        return sync_and_digest(folder, written)


def model_snapshot(
    model: Any,
    processor: Any,
    optimizer: Optimizer,
    copy: bool = False,
    process_group: ProcessGroup | None = None,
    only_model: bool = False,
) -> ModelSnapshot:
    """A snapshot of model and optimizer, to be written into a checkpoint's folder.

    With ``only_model`` there is no ``training/``, and no run can resume from it. Of a sharded model
    all ranks must call both this and what it returns, and each gets the digests of the files that
    it wrote. With ``copy`` the latter may be called from another thread while training continues.
    """
    group = process_group or SingleProcess()
    weights: Mapping[str, torch.Tensor] = model_weights(model)
    adapters: Mapping[str, torch.Tensor] = model_adapters(model)
    tensors = None if only_model else optimizer.tensors()
    if copy:
        weights, adapters = (copy_on_first(each, group.rank) for each in (weights, adapters))
        tensors = None if tensors is None else copies(tensors)
    return ModelSnapshot(model, processor, weights, adapters, tensors, _rng_state(), group)


def load_snapshot(checkpoint: Path, optimizer: Optimizer, rank: int = 0) -> None:
    """Put the optimizer, its model's trained weights and the generators back.

    Raises:
        ValueError: The model is another one than that of the checkpoint.
    """
    load_tensors(checkpoint / TRAINING / "optimizer", optimizer.tensors())
    optimizer.tensors_loaded()
    _load_rng(checkpoint / TRAINING / "rng", rank)


def save_tensors(
    folder: Path, tensors: Mapping[str, torch.Tensor], group: Any = None
) -> list[Path]:
    """Write tensors, or this rank's shards of DTensors, piece by piece.

    A collective call where there are ranks.

    Args:
        folder: New, or empty.
        group: The ranks' group to call; None for the one that they train with.

    Returns:
        This rank's part of the files: each is one rank's.

    Raises:
        OSError, SafetensorError: The disk is full, or does not let itself be written to.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with _without_notice(), _cause_raised():
        dcp.save(
            {name: _at_least_1d(tensor) for name, tensor in tensors.items()},
            storage_writer=StreamingWriter(folder),
            process_group=group,
            no_dist=not torch.distributed.is_initialized(),
        )
    files = sorted(folder.iterdir())  # all ranks have written theirs, which are in their order
    if not torch.distributed.is_initialized():
        return files
    rank, size = torch.distributed.get_rank(group), torch.distributed.get_world_size(group)
    return files[rank::size]


def load_tensors(folder: Path, tensors: Mapping[str, torch.Tensor]) -> None:
    """Read into tensors of the same names, from however many ranks wrote them.

    Raises:
        ValueError: A tensor is missing from the checkpoint: the model is another one.
    """
    reader = dcp.HuggingFaceStorageReader(str(folder))
    written = reader.read_metadata().state_dict_metadata
    if missing := sorted(set(tensors) - set(written)):
        raise ValueError(
            f"{folder} has no tensor '{missing[0]}' ({len(missing)} are missing); resume with the "
            "model and the trainable parameters that the run was started with"
        )
    with _without_notice(), _cause_raised():
        dcp.load(
            {name: _at_least_1d(tensor) for name, tensor in tensors.items()},
            storage_reader=reader,
            no_dist=not torch.distributed.is_initialized(),
        )


def progress(step: int, components: Mapping[str, HasState]) -> dict[str, Any]:
    """The step and the state of the components, as JSON values."""
    return {"step": step, **{name: c.state_dict() for name, c in components.items()}}


def save_progress(checkpoint: Path, state: Mapping[str, Any]) -> None:
    """Write ``training/state.json``."""
    path = checkpoint / TRAINING / "state.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(state, indent=1) + "\n")


def load_progress(checkpoint: Path, components: Mapping[str, HasState]) -> int:
    """Restore the components; returns the last step that is done.

    Raises:
        ValueError: The checkpoint has no state of one.
    """
    state = json.loads((checkpoint / TRAINING / "state.json").read_text())
    if missing := sorted(components.keys() - state.keys()):
        raise ValueError(
            f"{checkpoint} has no state of '{missing[0]}': another version of mmr1 wrote it; "
            "resume with that, or start a new run with it as model.path"
        )
    for name, component in components.items():
        component.load_state_dict(state[name])
    return int(state["step"])


@contextmanager
def _without_notice() -> Iterator[None]:
    """Suppress torch's warning that a single process is a single process."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "torch.distributed is (disabled|.*unavailable)")
        yield


@contextmanager
def _cause_raised() -> Iterator[None]:
    """Raise the cause of torch's BaseException, which passes every ``except Exception``."""
    try:
        yield
    except CheckpointException as error:
        cause, _ = next(iter(error.failures.values()))
        raise cause from None


def copies(tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Copies of tensors, or of shards, in main memory."""
    return {name: tensor.detach().to("cpu", copy=True) for name, tensor in tensors.items()}


def _rng_state() -> dict[str, torch.Tensor]:
    state = {"cpu": torch.get_rng_state()}
    if torch.cuda.is_available():
        state["cuda"] = torch.cuda.get_rng_state()
    return state


def _save_rng(folder: Path, state: Mapping[str, torch.Tensor], rank: int) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    path = _rng_file(folder, rank)
    save_file(dict(state), path)
    return path


def _load_rng(folder: Path, rank: int) -> None:
    """Restore the generators; a rank that was not there at the checkpoint keeps its own."""
    if not _rng_file(folder, rank).exists():
        return
    state = load_file(_rng_file(folder, rank))
    torch.set_rng_state(state["cpu"])
    if "cuda" in state and torch.cuda.is_available():
        torch.cuda.set_rng_state(state["cuda"])


def _rng_file(folder: Path, rank: int) -> Path:
    return folder / f"rank_{rank:05d}.safetensors"


def _at_least_1d(tensor: torch.Tensor) -> torch.Tensor:
    """A view of at least one dimension: sharded safetensors checkpoints have no scalars."""
    return tensor.view(1) if tensor.dim() == 0 else tensor
