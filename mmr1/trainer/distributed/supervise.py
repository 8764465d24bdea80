"""Restart runs from the last checkpoint, on what is left of the cluster."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable
from pathlib import Path

from mmr1.config import Config, ResourcesConfig
from mmr1.trainer.distributed.errors import HungError, WorkerLostError
from mmr1.trainer.distributed.ray_connection import join_cluster

logger = logging.getLogger(__name__)


def supervised(run: Callable[..., Path], config: Config, *, resume: bool, samples: bool) -> Path:
    """``run(config, resume=...)``, started again when a rank or too many engines are lost.

    Up to ``resources.ray.max_restarts`` times in all. A cluster that has become smaller gets fewer
    ranks and engines, one that has grown again gets as many as were asked for; see :func:`fitted`.

    Args:
        samples: Does the run start engines beside its ranks?

    Raises:
        WorkerLostError: A worker was lost once more, or too little is left of the cluster.
        HungError: A collective call hung once more.
    """
    attempt = config
    for restart in range(config.resources.cluster.max_restarts + 1):
        try:
            return run(attempt, resume=resume or restart > 0)
        except (WorkerLostError, HungError) as error:
            if restart == config.resources.cluster.max_restarts:
                raise
            attempt = _on_what_is_left(config, samples)
            logger.warning(
                "%s. Started again, %d of %d times, with %s",
                error,
                restart + 1,
                config.resources.cluster.max_restarts,
                _processes(attempt, samples),
            )
    raise AssertionError("the last attempt returns or raises")


def fitted(
    resources: ResourcesConfig, engine_size: int, room: int, *, samples: bool, colocated: bool
) -> ResourcesConfig:
    """The most ranks and engines that there is room for, in about the same proportion.

    The numbers do not depend on how many there are, only the time does.

    Args:
        engine_size: Devices that an engine takes; a rank takes one.
        room: Devices of the cluster.
        samples: Does the run start engines? Without them the ranks have all the room.
        colocated: Do engines share the devices of the ranks?

    Raises:
        WorkerLostError: If there is no room for one engine and one copy of the model
            (``resources.fsdp_size``) of whole contexts (``resources.context_parallel_size``), or
            only for processes of one kind, which is not a run on Ray.
    """
    copy = math.lcm(resources.fsdp_size or 1, resources.context_parallel_size)
    if colocated and samples:
        copy = math.lcm(copy, engine_size)
    if colocated or not samples:
        ranks = min(resources.ranks, room) // copy * copy
        return _enough(resources, room, 2 - colocated, ranks=ranks)
    wanted = resources.ranks + engine_size * resources.engines
    if room >= wanted:
        return resources
    beside_a_copy = (room - copy) // engine_size
    engines = min(max(1, resources.engines * room // wanted), beside_a_copy)
    ranks = min(resources.ranks, room - engine_size * engines) // copy * copy
    return _enough(resources, room, 2, ranks=ranks, engines=engines)


def _enough(resources: ResourcesConfig, room: int, least: int, **numbers: int) -> ResourcesConfig:
    """These numbers of processes, with at least ``least`` of one kind, as a run on Ray has."""
    if min(numbers.values()) < 1 or max(numbers.values()) < least:
        needed = ", ".join(f"resources.{name}={getattr(resources, name)}" for name in numbers)
        raise WorkerLostError(
            f"the Ray cluster has {room} devices left, too few to continue with a part of {needed} "
            f"(resources.fsdp_size={resources.fsdp_size} "
            f"context_parallel_size={resources.context_parallel_size}); add nodes, and continue "
            "with --resume"
        )
    return resources.changed(numbers)


def _processes(config: Config, samples: bool) -> str:
    engines = f" and {config.engines} engines" if samples else ""
    return f"{config.resources.ranks} ranks{engines}"


def _on_what_is_left(config: Config, samples: bool) -> Config:
    """The configuration for what is left; a local cluster is started anew, as large as before."""
    if config.resources.cluster.address is None:
        return config
    engine_size = config.rollout.gpus_per_engine
    room = _room(config.resources.cluster.address)
    colocated = config.rollout.colocated
    left = fitted(config.resources, engine_size, room, samples=samples, colocated=colocated)
    return config.changed(resources=left)


def _room(address: str) -> int:
    """GPUs of the cluster; where it has none, CPUs."""
    import ray

    joined = ray.is_initialized()
    if not joined:
        join_cluster(address)
    try:
        of_cluster = ray.cluster_resources()
    finally:
        if not joined:
            ray.shutdown()
    return int(of_cluster.get("GPU") or of_cluster.get("CPU", 0))
