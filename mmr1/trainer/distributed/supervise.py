"""Runs that go on by themselves: from the last checkpoint, on what is left of the cluster."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path

from mmr1.config import Config, ResourcesConfig
from mmr1.trainer.distributed.errors import HungError, WorkerLostError
from mmr1.trainer.distributed.ray_connection import join_cluster

logger = logging.getLogger(__name__)


def supervised(run: Callable[..., Path], config: Config, *, resume: bool) -> Path:
    """``run(config, resume=...)``, started again when a rank or too many engines are lost.

    Up to ``resources.max_restarts`` times in all. A cluster that has become smaller gets fewer
    ranks and engines; see :func:`fitted`.

    Raises:
        WorkerLostError: A worker was lost once more.
        HungError: A collective call hung once more.
    """
    for restart in range(config.resources.max_restarts + 1):
        try:
            return run(config, resume=resume or restart > 0)
        except (WorkerLostError, HungError) as error:
            if restart == config.resources.max_restarts:
                raise
            config = _on_what_is_left(config)
            resources = config.resources
            logger.warning(
                "%s. Started again, %d of %d times, with %d ranks and %d engines",
                error,
                restart + 1,
                resources.max_restarts,
                resources.ranks,
                resources.engines,
            )
    raise AssertionError("the last attempt returns or raises")


def fitted(resources: ResourcesConfig, engine_size: int, room: int) -> ResourcesConfig:
    """As many ranks and engines as there is room for, in about the same proportion.

    The numbers do not depend on how many there are, only the time does.

    Args:
        engine_size: Devices that an engine takes; a rank takes one.
        room: Devices of the cluster.

    Raises:
        WorkerLostError: There is no room for one engine, and one rank or one copy of the model
            (``resources.fsdp_size``).
    """
    wanted = resources.ranks + engine_size * resources.engines
    if room >= wanted:
        return resources
    engines = max(1, resources.engines * room // wanted)
    copy = resources.fsdp_size or 1
    ranks = min(resources.ranks, room - engine_size * engines) // copy * copy
    if ranks < 1:
        raise WorkerLostError(
            f"the Ray cluster has {room} devices left, too few for one engine of {engine_size} and "
            f"{copy} ranks; add nodes, and go on with --resume"
        )
    return resources.model_copy(update={"ranks": ranks, "engines": engines})


def _on_what_is_left(config: Config) -> Config:
    """A local cluster is started anew and is as large as before."""
    if config.resources.address is None:
        return config
    engine_size = config.rollout.tensor_parallel_size
    resources = fitted(config.resources, engine_size, _room(config.resources.address))
    return config.model_copy(update={"resources": resources})


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
