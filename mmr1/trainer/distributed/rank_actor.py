"""The Ray actor of one rank of the trainer."""

from __future__ import annotations

import os
import socket
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial, wraps
from itertools import chain
from pathlib import Path
from typing import Any, Protocol, TypeVar, cast

import torch
from torch.profiler import profile

from mmr1.config import Config
from mmr1.parallel import cores
from mmr1.rollout.engines import hands_over_gpu_memory, transfers_weights
from mmr1.rollout.weight_layout import layout_for
from mmr1.runtime import set_up_torch
from mmr1.trainer.distributed import fsdp
from mmr1.trainer.distributed.engine_actor import Engine
from mmr1.trainer.distributed.engine_link import EngineLink
from mmr1.trainer.distributed.errors import TransferError
from mmr1.trainer.distributed.network import node_address
from mmr1.trainer.distributed.ray_calls import Actor
from mmr1.trainer.distributed.weight_source import KeptSource, RankSource
from mmr1.trainer.forward.micro_batches import ProcessGroup
from mmr1.trainer.models.loading import LoadModel
from mmr1.trainer.models.optimizer import Optimizer
from mmr1.trainer.models.state import Digests, WriteCheckpoint
from mmr1.trainer.models.weights import local
from mmr1.trainer.runs.step import rank_trace_path, recording, write_trace
from mmr1.vision.build import family_of, media_cache
from mmr1.vision.families.family import ModelFamily
from mmr1.vision.prepare import MediaCache

Method = TypeVar("Method", bound=Callable[..., Any])
Built = TypeVar("Built", covariant=True)

SAVING = "saving"  # Ray's concurrency group of ``Rank.write``
SENDING = "sending"  # of ``Rank.send_kept``
WATCHING = "watching"  # of ``Rank.silent_s``


class Build(Protocol[Built]):
    """Builds what learns, the same in one process and on each rank; a function of a module."""

    def __call__(
        self,
        config: Config,
        family: ModelFamily,
        media: MediaCache,
        process_group: ProcessGroup | None = None,
        load: LoadModel = ...,
    ) -> Built: ...


@dataclass(frozen=True, slots=True)
class PartMethod:
    """A method of a part of what a rank has built.

    Attributes:
        part: Finds the part, such as the policy.
        method: Method as the part's class or protocol has it.
    """

    part: Callable[[Any], Any]
    method: Callable[..., Any]

    @property
    def name(self) -> str:
        return self.method.__qualname__

    def of(self, built: Any) -> Callable[..., Any]:
        """The method, bound to the part of what was built."""
        bound: Callable[..., Any] = getattr(self.part(built), self.method.__name__)
        return bound


def collective(method: Method) -> Method:
    """A method that all ranks must call together; ``watched`` reports where it hangs."""

    @wraps(method)
    def call(self: Rank, *args: Any, **kwargs: Any) -> Any:
        with fsdp.watched(self.config.resources.collective_timeout_s, self.stacks):
            return method(self, *args, **kwargs)

    return cast(Method, call)


class Rank:
    """One rank of the trainer.

    Args:
        on_machine: Ranks on this machine.
        name: Name of the file of ``stacks``.

    Attributes:
        stacks: File for the stack traces of a collective call that hangs.
    """

    def __init__(
        self, config: Config, on_machine: int, rank: int, build: Build[Any], name: str = "rank"
    ) -> None:
        self.config, self._rank, self._build = config, rank, build
        self._on_machine = on_machine
        self._listener: socket.socket | None = None
        self._offload: CpuOffload | None = None
        self._taken: dict[str, WriteCheckpoint] = {}
        self._sources: dict[str, RankSource] = {}
        self._kept: dict[int, KeptSource] = {}
        self._trace: profile | None = None
        self.stacks = Path(config.trainer.output_dir).resolve() / f"{name}_{rank}.stacks"

    def open_rendezvous(self) -> str:
        """Listen where the ranks will meet; returns ``host:port`` on this rank's node."""
        host = node_address()
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self._listener = socket.create_server((host, 0), family=family)
        return f"{host}:{self._listener.getsockname()[1]}"

    def gpus(self) -> list[str]:
        """The GPUs of this process, as ``CUDA_VISIBLE_DEVICES`` names them."""
        import ray

        held: list[str] = ray.get_runtime_context().get_accelerator_ids()["GPU"]
        return held

    def build(self, address: str, environment: Mapping[str, str]) -> None:
        """Load the models and shard them; all ranks must call it together.

        Args:
            environment: Variables of the driver that this process lacks: Ray gives its workers
                those of the machine's own start, and shows what ``runtime_env`` adds to them.
        """
        os.environ.update(environment)
        config, resources = self.config, self.config.resources
        size = resources.ranks
        # Rank 0 makes what begins at random. The others draw dropout alone, each its own.
        seed = config.seed + self._rank
        set_up_torch(
            seed,
            threads_of_rank(config, self._on_machine),
            config.full_determinism,
            expandable_segments=not hands_over_gpu_memory(config),
        )
        mesh = fsdp.join(
            self._rank,
            size,
            address,
            node_address(),
            resources.collective_timeout_s,
            resources.fsdp_size,
            self._listener,
        )
        self._link = EngineLink(config, node_address(), self._rank)
        models: list[Any] = []
        family = family_of(config)
        self._built = self._build(
            config,
            family,
            media_cache(family, config, self._on_machine),
            process_group=fsdp.DistributedProcessGroup(
                self._rank, size, resources.context_parallel_size, resources.collective_timeout_s
            ),
            load=partial(_loaded, models, mesh=mesh),
        )
        if config.rollout.offload_trainer:
            self._offload = CpuOffload(models, self._built.optimizers)

    def transfers_weights(self) -> bool:
        """True if this rank sends weights over GPUs; else Ray's object store brings them."""
        return transfers_weights(self.config)

    @collective
    def call(self, method: PartMethod, *args: Any) -> Any:
        """Call a method of what was built, and return its result."""
        return method.of(self._built)(*args)

    def ask(self, method: PartMethod) -> Any:
        """Call a method that one rank answers without the others."""
        fsdp.PROGRESS.heartbeat()
        return method.of(self._built)()

    def silent_s(self) -> float:
        """Seconds since this rank began a call or a forward pass; called in a separate thread."""
        return fsdp.PROGRESS.silent_s

    @collective
    def send(self, method: PartMethod, engines: list[Actor[Engine]], version: int) -> None:
        """Send the weights that the method gives, from rank 0 or from each rank to the engine on
        its GPU; all ranks put them together, one by one.

        Raises:
            TransferError: An engine was lost, or failed.
            WorkerLostError: The same on colocated GPUs; the other ranks are left where they are.
        """
        source = self._source(method)
        source.begin()
        if self._link.sends:
            try:
                self._link.send(source, engines, version)
            except TransferError:
                source.end()
                raise
        source.end()

    @collective
    def keep(self, method: PartMethod, key: int) -> None:
        """Copy the weights that the method gives to main memory of rank 0, for ``send_kept``."""
        source = self._source(method)
        source.begin()
        if self._rank == 0:
            copies = {name: weight.to("cpu", copy=True) for name, weight in source}
            self._kept[key] = KeptSource(source.metadata(), copies, "cuda")
        source.end()

    def send_kept(self, key: int, engines: list[Actor[Engine]], version: int) -> None:
        """Send what ``keep`` copied; called in a separate thread while the ranks learn."""
        self._link.send(self._kept[key], engines, version)

    def make_room(self, sent: bool) -> None:
        """Free what the device caches for later, and move what ``rollout.engine.offload_trainer``
        names; gradients are freed after each step.

        Args:
            sent: The engines have their weights already.
        """
        fsdp.PROGRESS.heartbeat()
        if self._offload is not None:
            (self._offload.after_sending if sent else self._offload.before_sending)()
        if torch.cuda.is_available():
            torch.cuda.empty_cache()

    def take_back(self) -> None:
        """Bring back to the device what ``make_room`` has moved."""
        fsdp.PROGRESS.heartbeat()
        if self._offload is not None:
            self._offload.back()

    def begin_trace(self) -> None:
        """Record what this rank computes, until ``end_trace``."""
        fsdp.PROGRESS.heartbeat()
        self._trace = recording()
        self._trace.start()

    def end_trace(self, file: Path) -> None:
        """Write it beside the file of the process that runs the loop."""
        assert self._trace is not None
        fsdp.PROGRESS.heartbeat()
        self._trace.stop()
        write_trace(self._trace, rank_trace_path(file, self._rank))
        self._trace = None

    def release(self, key: int) -> None:
        """Free what ``keep`` copied."""
        del self._kept[key]

    @collective
    def gather(self, method: PartMethod) -> dict[str, torch.Tensor] | None:
        """The weights that the method gives, in main memory; None but on rank 0."""
        weights: Mapping[str, torch.Tensor] = method.of(self._built)()
        if self._rank:
            deque(weights.values(), maxlen=0)  # all ranks gather them
            return None
        return {name: tensor.detach().cpu() for name, tensor in weights.items()}

    def share(self, method: PartMethod) -> list[Any]:
        """Put what ``gather`` returns into Ray's object store. Only rank 0 returns a reference."""
        import ray

        weights = self.gather(method)
        return [] if weights is None else [ray.put(weights)]

    @collective
    def save(self, method: PartMethod, folder: Path, *args: Any) -> Digests:
        """Write the snapshot that the method takes; the digests of this rank's files."""
        write: WriteCheckpoint = method.of(self._built)(False, *args)
        return write(folder)

    @collective
    def take(self, method: PartMethod, *args: Any) -> None:
        """Take a snapshot as a copy, which ``write`` writes while training continues."""
        self._taken[method.name] = method.of(self._built)(True, *args)

    def write(self, method: PartMethod, folder: Path) -> Digests:
        """Write the last snapshot that the method took; called in a separate thread."""
        return self._taken.pop(method.name)(folder)

    def _source(self, method: PartMethod) -> RankSource:
        if method.name not in self._sources:
            read = method.of(self._built)
            self._sources[method.name] = RankSource(read, layout_for(self.config))
        return self._sources[method.name]


def threads_of_rank(config: Config, on_machine: int) -> int | None:
    """CPU threads of a rank: its part of the cores where AdamW runs on them, else torch's choice.

    Ray leaves an actor one thread for each CPU that it reserves, and ranks reserve one.
    """
    if config.trainer.threads is not None or not config.optimizer.offload:
        return config.trainer.threads
    return max(1, cores() // on_machine)


def _loaded(models: list[Any], *args: Any, **options: Any) -> Any:
    """Load the model by ``fsdp.load``, and keep it."""
    model = fsdp.load(*args, **options)
    models.append(model)
    return model


class HostOffloader:
    """Moves storages of a device to main memory, and back.

    Its own copies are pinned where the device is a GPU, and stay for the next time.
    """

    def __init__(self) -> None:
        self._device = "cuda" if torch.cuda.is_available() else "cpu"
        self._copies: dict[int, torch.UntypedStorage] = {}
        self._away: list[tuple[torch.UntypedStorage, torch.UntypedStorage]] = []

    def take(self, tensors: Iterable[torch.Tensor]) -> None:
        """Empty the storages of these tensors, except for those that are in main memory anyway: on
        another device, or the mapping of a file.
        """
        taken = []
        for key, storage in storages(tensors).items():
            if storage.device.type == self._device and storage.nbytes() and storage.resizable():
                copy = self._copy_for(key, storage.nbytes())
                copy.copy_(storage, non_blocking=True)
                taken.append((storage, copy))
        self._finish()
        for storage, _ in taken:
            storage.resize_(0)
        self._away += taken

    def give_back(self) -> None:
        """Fill all storages again."""
        for storage, copy in self._away:
            storage.resize_(copy.nbytes())
            storage.copy_(copy, non_blocking=True)
        self._finish()
        self._away = []

    def _copy_for(self, key: int, size: int) -> torch.UntypedStorage:
        known = self._copies.get(key)
        if known is None or known.nbytes() != size:
            known = torch.UntypedStorage(size)
            self._copies[key] = known.pin_memory() if self._device == "cuda" else known
        return self._copies[key]

    def _finish(self) -> None:
        if self._device == "cuda":
            torch.cuda.synchronize()


def storages(tensors: Iterable[torch.Tensor]) -> dict[int, torch.UntypedStorage]:
    """Each storage once, by a key that stays the same while it is empty."""
    with torch.no_grad():
        found = [local(tensor).untyped_storage() for tensor in tensors]
    return {storage._cdata: storage for storage in found}


class CpuOffload:
    """Moves weights and optimizer states to main memory for engines, and back for the ranks.

    Args:
        models: The one whose weights are sent to the engines is the first.
    """

    def __init__(self, models: Sequence[Any], optimizers: Sequence[Optimizer]) -> None:
        self._models = models
        self._optimizers = optimizers
        self._memory = HostOffloader()

    def before_sending(self) -> None:
        """Move moments, float32 weights, references and critics to main memory."""
        sent = storages(_of_model(self._models[0]))
        of_optimizers = (optimizer.tensors().values() for optimizer in self._optimizers)
        others = chain(*map(_of_model, self._models[1:]), *of_optimizers)
        self._memory.take(t for t in others if not storages([t]).keys() & sent.keys())

    def after_sending(self) -> None:
        """Move the weights to main memory."""
        self._memory.take(_of_model(self._models[0]))

    def back(self) -> None:
        self._memory.give_back()


def _of_model(model: Any) -> Iterable[torch.Tensor]:
    return chain(model.parameters(), model.buffers())
