"""Ranks of ``torch.distributed``: a model sharded over them by FSDP2, forwards in lockstep."""

from __future__ import annotations

import faulthandler
import socket
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import timedelta
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any, cast

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.distributed_c10d import _set_pg_timeout
from torch.distributed.fsdp import (
    CPUOffloadPolicy,
    FSDPModule,
    MixedPrecisionPolicy,
    OffloadPolicy,
    fully_shard,
)
from torch.distributed.tensor import DTensor, distribute_tensor

from mmr1.config import ModelConfig
from mmr1.trainer.distributed.errors import HungError, WorkerLostError
from mmr1.trainer.distributed.network import use_interface_of
from mmr1.trainer.forward.any_model.forward import admit, verdict_of
from mmr1.trainer.forward.context import Context
from mmr1.trainer.forward.micro_batches import MicroBatch
from mmr1.trainer.models.loading import (
    NO_RATES,
    load_here,
    load_scalar_model,
    load_trainable_in_main_memory,
    trainable_on_meta,
)
from mmr1.trainer.models.quantization import loads_in_4_bits, quantized_weights
from mmr1.trainer.models.scalar_model import ScalarModel
from mmr1.types import Metric, merge_metrics
from mmr1.vision.families.loading import (
    architecture_of,
    keep_names_in_files,
    model_parts,
    unwrapped,
)


def join(
    rank: int,
    size: int,
    address: str,
    own_address: str,
    timeout_s: float,
    shard: int | None = None,
    listener: socket.socket | None = None,
) -> DeviceMesh:
    """Join the process group as rank ``rank`` of ``size``; ``address`` is ``host:port`` of rank 0.

    A collective call that lasts longer than ``timeout_s`` fails on every rank. With ``shard`` the
    mesh has two dimensions (HSDP): copies of the model, and the ranks that share a copy. Rank 0
    gives the ``listener`` that is bound to ``address``: torch's own would be bound to every
    interface. Gloo and NCCL use the interface that has ``own_address``, this machine's.
    """
    assert (listener is not None) == (rank == 0)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    timeout = timedelta(seconds=timeout_s)
    host, _, port = address.rpartition(":")
    use_interface_of(own_address)
    store = dist.TCPStore(
        host,
        int(port),
        size,
        is_master=rank == 0,
        timeout=timeout,
        master_listen_fd=None if listener is None else listener.detach(),
    )
    dist.init_process_group(
        "cpu:gloo,cuda:nccl" if device == "cuda" else "gloo",
        store=store,
        rank=rank,
        world_size=size,
        timeout=timeout,
    )
    if shard is None or shard == size:
        return init_device_mesh(device, (size,))
    mesh = init_device_mesh(device, (size // shard, shard), mesh_dim_names=("copy", "shard"))
    for group in mesh.get_all_groups():  # else torch gives them a time of its own
        _set_pg_timeout(timeout, group)
    return mesh


# What the backends of torch.distributed write, in lower case.
_LATE = ("timed out", "timeout")
_GONE = ("remote worker crash", "connection closed", "connection reset", "broken pipe")


class Progress:
    """The time at which this rank last did something that shows that it is not stuck."""

    def __init__(self) -> None:
        self._last = time.monotonic()
        self._alarm: Callable[[], None] | None = None

    def heartbeat(self) -> None:
        self._last = time.monotonic()
        if self._alarm is not None:
            self._alarm()

    @contextmanager
    def put_off(self, alarm: Callable[[], None]) -> Iterator[None]:
        """Call ``alarm``, which sets an alarm anew, now and with all progress inside the block."""
        self._alarm = alarm
        try:
            self.heartbeat()
            yield
        finally:
            self._alarm = None

    @property
    def silent_s(self) -> float:
        return time.monotonic() - self._last


PROGRESS = Progress()


@contextmanager
def watched(timeout_s: float, stacks: Path) -> Iterator[None]:
    """Watch a collective call: when it hangs, write the stacks of this rank to ``stacks``.

    They are those of a rank that made no progress for nearly as long. A call that ends well after
    all leaves none.

    Raises:
        HungError: The call gave up after ``timeout_s``: another rank is stuck.
        WorkerLostError: Another rank is gone.
    """
    stacks.parent.mkdir(parents=True, exist_ok=True)
    with stacks.open("a") as file:
        before = file.tell()
        alarm = partial(faulthandler.dump_traceback_later, 0.9 * timeout_s, file=file)
        try:
            with PROGRESS.put_off(alarm):
                yield
        except WorkerLostError:  # says already who is gone
            raise
        except RuntimeError as error:
            if (explained := _explained(error, timeout_s, stacks)) is None:
                raise
            raise explained from error
        finally:
            faulthandler.cancel_dump_traceback_later()
        file.truncate(before)
    if stacks.stat().st_size == 0:
        stacks.unlink()


def _explained(error: RuntimeError, timeout_s: float, stacks: Path) -> RuntimeError | None:
    """A backend's failure as an error that a user can read; None for other failures."""
    message = str(error).lower()
    if any(words in message for words in _GONE):
        return WorkerLostError("a rank is gone; --resume continues from the last checkpoint")
    if any(words in message for words in _LATE):
        return HungError(
            f"a collective call did not end within resources.collective_timeout_s={timeout_s:g}: a "
            f"rank is stuck. What the others were at is in {stacks.parent}/rank_*.stacks; --resume "
            "continues from the last checkpoint"
        )
    return None


_ROOT = "fsdp_root"
"""Where a sharded model keeps its root module of FSDP."""


class DistributedProcessGroup:
    """All ranks; a ``ProcessGroup``.

    Args:
        context: So many neighbouring ranks share each sequence; it divides their number.
        timeout_s: After which a call of those fails on each of them; None for torch's own.
    """

    def __init__(
        self, rank: int, size: int, context: int = 1, timeout_s: float | None = None
    ) -> None:
        self.rank, self.size = rank, size
        self.context: Context | None = None
        if context > 1:
            timeout = None if timeout_s is None else timedelta(seconds=timeout_s)
            group, _ = dist.new_subgroups(context, timeout=timeout)
            self.context = Context(rank % context, context, group)
        # Its calls may run beside those of a step, with which they must not be mixed up.
        self.saving = dist.new_group(backend="gloo")

    def run(self, compute: Callable[..., Any], model: Any, *args: Any, **options: Any) -> Any:
        return run_sharded(compute, model, *args, **options)

    def lockstep_batches(self, batches: Sequence[MicroBatch]) -> list[MicroBatch]:
        most = torch.tensor(len(batches))
        dist.all_reduce(most, dist.ReduceOp.MAX)
        has_media = torch.zeros(int(most), dtype=torch.int64)
        for i, batch in enumerate(batches):
            has_media[i] = any(group.all_media for group in batch.groups)
        dist.all_reduce(has_media, dist.ReduceOp.MAX)
        empty = MicroBatch((), torch.zeros(0, dtype=torch.int64))
        padded = [*batches, *[empty] * (int(most) - len(batches))]
        return [
            replace(batch, run_tower=bool(run_tower))
            for batch, run_tower in zip(padded, has_media, strict=True)
        ]

    def merge(self, metrics: Mapping[str, Metric]) -> dict[str, Metric]:
        every: list[dict[str, Metric]] = [{} for _ in range(self.size)]
        dist.all_gather_object(every, dict(metrics))
        return merge_metrics(every[:: 1 if self.context is None else self.context.size])

    def total(self, sums: Mapping[str, float]) -> dict[str, float]:
        merged = self.merge({name: Metric(value, reduce="sum") for name, value in sums.items()})
        return {name: float(metric.sum) for name, metric in merged.items()}


def load(
    config: ModelConfig,
    trains: bool,
    key: str = "model.path",
    head: bool = False,
    offload: bool = False,
    lr_of_parts: Mapping[str, float] = NO_RATES,
    *,
    mesh: DeviceMesh,
) -> Any:
    """Load a model sharded over the ranks, which all must call it; no device ever holds the whole.

    Rank 0 reads it into main memory and hands it out, one tensor at a time. What is trained is
    float32, in which gradients are added up and AdamW steps; the forward and the backward pass
    gather it in ``config.dtype``. What is not trained is kept in that.

    Args:
        head: Whether the model has a scalar head: a ``ScalarModel``.
        offload: Shards stay in main memory, and come to the device when their layer is gathered.
        lr_of_parts: Rates of the ``optimizer`` section; parts of rate 0 are frozen.

    With ``model.lora.load_in_4bit`` each rank reads the model, and keeps all weights in 4 bits.
    """
    if loads_in_4_bits(config):
        return _load_in_4_bits(config, trains, key, head, mesh)
    model = spread(config, trains, mesh, key, head, offload, lr_of_parts)
    in_main_memory = load_trainable_in_main_memory
    if head:
        in_main_memory = partial(load_scalar_model, load=load_trainable_in_main_memory)
    whole = in_main_memory(config, key) if dist.get_rank() == 0 else None
    _hand_out(whole, model)
    if whole is not None:
        keep_names_in_files(_transformers_model(whole), _transformers_model(model))
    verdicts = [None if whole is None else verdict_of(_transformers_model(whole))]
    dist.broadcast_object_list(verdicts, 0)
    admit(_transformers_model(model), verdicts[0])
    return model


def _load_in_4_bits(
    config: ModelConfig, trains: bool, key: str, head: bool, mesh: DeviceMesh
) -> Any:
    """Load a model in 4 bits and shard it; shards of 4-bit weights lose their constants.

    The weights in 4 bits are a quarter of those that other ranks gather to compute.
    """
    model = load_here(config, trains, key, head)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.requires_grad:
                parameter.data = parameter.data.float()
                dist.broadcast(parameter, 0)  # adapters begin at random
    shard(model, mesh, getattr(torch, config.dtype))
    return model


def _transformers_model(model: Any) -> Any:
    return unwrapped(model.backbone if isinstance(model, ScalarModel) else model)


def spread(
    config: ModelConfig,
    trains: bool,
    mesh: DeviceMesh,
    key: str = "model.path",
    head: bool = False,
    offload: bool = False,
    lr_of_parts: Mapping[str, float] = NO_RATES,
) -> Any:
    """A sharded model whose weights are yet to be filled in."""
    backbone = trainable_on_meta(config, key, lr_of_parts)
    model = ScalarModel(backbone) if head else backbone
    if not trains:
        model.requires_grad_(False).eval()
    for parameter in model.parameters():
        if parameter.requires_grad:
            parameter.data = parameter.data.float()
    shard(model, mesh, getattr(torch, config.dtype), offload)
    model.to_empty(device="cpu" if offload else mesh.device_type)
    if offload:
        _move_unsharded(model, mesh.device_type)
    unwrapped(backbone).tie_weights()
    return model


@torch.no_grad()
def _hand_out(whole: Any | None, model: Any) -> None:
    """Fill a sharded model with the parameters and buffers of rank 0's ``whole`` one."""
    source = {} if whole is None else _tensors(whole)
    for name, own in _tensors(model).items():
        tensor = torch.empty(own.shape, dtype=own.dtype, device=own.device)
        if whole is not None:
            tensor.copy_(source[name])
        if isinstance(own, DTensor):
            own.copy_(distribute_tensor(tensor, own.device_mesh, own.placements))
        else:
            dist.broadcast(tensor, 0)
            own.copy_(tensor)


def _tensors(model: Any) -> dict[str, torch.Tensor]:
    return dict(chain(model.named_parameters(), model.named_buffers()))


def _move_unsharded(model: Any, device: str) -> None:
    """Move buffers and parameters that are not sharded to the device."""
    for module in model.modules():
        for parameter in module.parameters(recurse=False):
            if not isinstance(parameter, DTensor):
                parameter.data = parameter.data.to(device)
        for name, buffer in module.named_buffers(recurse=False):
            module._buffers[name] = buffer.to(device)


def shard(model: Any, mesh: DeviceMesh, compute_dtype: torch.dtype, offload: bool = False) -> None:
    """Shard a model in place, for ``DistributedProcessGroup.run``.

    Every layer is gathered before it runs and freed after. The embeddings, norms and the head stay
    gathered during a forward and its backward, and so does the tower of a model whose own forward
    decides how often it is called. A frozen vision tower is not sharded: its features are cached,
    so ranks run it at different times. Neither are weights in 4 bits.
    """
    base = _transformers_model(model)
    parts = model_parts(base)
    tower_parameters = [] if parts.tower is None else list(parts.tower.parameters())
    frozen_tower = not any(p.requires_grad for p in tower_parameters)
    precision = MixedPrecisionPolicy(
        param_dtype=compute_dtype,
        reduce_dtype=torch.float32,
        cast_forward_inputs=False,  # positions and angles stay in float32
    )
    # The merger is a unit too: as part of the rest it would lose gradients where adapters on it are
    # all that is trained there, in micro-batches in which no rank sees anything.
    tower = [] if frozen_tower else [*parts.tower_blocks, *parts.tower_mergers]
    where = OffloadPolicy()
    if offload:
        where = CPUOffloadPolicy(pin_memory=mesh.device_type != "cpu")
    in_4_bits = set(quantized_weights(model).values())
    options: dict[str, Any] = {"mesh": mesh, "offload_policy": where, "ignored_params": in_4_bits}
    for layer in [*parts.layers, *tower]:
        fully_shard(layer, mp_policy=precision, **options)
        if not architecture_of(base).shares_prompts:
            # Experts that are modules of their own may have tokens on one rank alone.
            cast(FSDPModule, layer).set_reduce_scatter_unused_params(True)
    if isinstance(model, ScalarModel):
        fully_shard(model.head, **options)  # computes in float32
    whole = _Whole(model)
    if frozen_tower:
        options["ignored_params"] = in_4_bits.union(tower_parameters)
    fully_shard(whole, mp_policy=precision, **options)
    model.__dict__[_ROOT] = whole  # not as a submodule: the root has the model as its own


def run_sharded(compute: Callable[..., Any], model: Any, *args: Any, **options: Any) -> Any:
    """``compute(model, *args, **options)``, the parameters that belong to no layer gathered."""
    root = model.__dict__[_ROOT]
    PROGRESS.heartbeat()
    result = root(compute, *args, **options)
    if not torch.is_grad_enabled():
        # No backward will free what the root gathered; were the weights then written into, as
        # when a checkpoint is read, the next forward would still see the old ones.
        root.reshard()
    return result


class _Whole(torch.nn.Module):
    """The root module of FSDP: its ``forward`` gathers the parameters that belong to no layer.

    Its outputs are tensors or tuples of them, because FSDP's backward hooks look for tensors.
    """

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model

    def forward(self, compute: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        return compute(self.model, *args, **kwargs)
