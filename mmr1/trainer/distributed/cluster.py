"""The Ray cluster of a run: connect to it, place ranks and engines on it, and end them.

The driver process runs the loop and holds the sampler, the rewards and the metrics. A rank holds a
shard of the policy and, with a KL term, of the reference.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mmr1.config import Config, ResourcesConfig
from mmr1.trainer.distributed.engine_actor import Engine
from mmr1.trainer.distributed.errors import HungError, WorkerLostError
from mmr1.trainer.distributed.rank_actor import Rank
from mmr1.trainer.distributed.ray_calls import get, outcomes
from mmr1.trainer.distributed.ray_connection import join_cluster, start_local_cluster
from mmr1.trainer.distributed.ray_engines import RayEngines
from mmr1.trainer.distributed.ray_policy import PromptCost, RayPolicy, RayReference
from mmr1.types import Prompt
from mmr1.vision.build import family_of


@dataclass(frozen=True, slots=True)
class Cluster:
    """The policy, the reference and the engines of a run, as actors on Ray."""

    policy: RayPolicy
    reference: RayReference | None
    engines: RayEngines


@contextmanager
def on_ray(config: Config) -> Iterator[Cluster]:
    """Start ranks and engines on the cluster that ``resources`` names; end them afterwards.

    Raises:
        ValueError: Ray is not installed, the cluster does not let us in, or a worker refused its
            configuration.
        WorkerLostError: The cluster has less than ``resources`` asks for.
    """
    try:
        import ray
    except ImportError as error:
        raise ValueError(
            "resources asks for more than one rank or engine, and Ray, which runs them, is not "
            f"installed ({error}); install 'mmr1[ray]', or set resources.ranks=1 "
            "resources.engines=1"
        ) from error
    resources = config.resources
    joined = ray.is_initialized()
    if not joined:
        if resources.address is None:
            start_local_cluster(resources.ranks + resources.engines)
        else:
            join_cluster(resources.address)
    actors: list[Any] = []
    begin = time.time()
    try:
        place = _placement(resources, config.rollout.tensor_parallel_size)

        def start(cls: type, index: int, *args: Any) -> Any:
            actors.append(place(cls, index, *args))
            return actors[-1]

        def replace(i: int, engine: Any) -> Any:
            ray.kill(engine)
            new = start(Engine, resources.ranks + i, config)
            _wait_for_room(new, resources.start_timeout_s)
            get([new.build.remote()])
            return new

        ranks = [start(Rank, i, config, i) for i in range(resources.ranks)]
        engines = [start(Engine, resources.ranks + i, config) for i in range(resources.engines)]
        address = get([ranks[0].open_rendezvous.remote()])[0]
        get([rank.build.remote(address) for rank in ranks] + [e.build.remote() for e in engines])
        cost = _prompt_cost(config)
        reference = RayReference(ranks, cost) if config.algorithm.kl_coef else None
        rollout = config.rollout
        rollouts = RayEngines(engines, replace, rollout.timeout_s, rollout.max_restarts)
        try:
            yield Cluster(RayPolicy(ranks, cost), reference, rollouts)
        except WorkerLostError as error:
            raise hung_or_lost(error, Path(config.trainer.output_dir), begin) from error
    finally:
        for actor in actors:
            ray.kill(actor)
        if not joined:
            ray.shutdown()


def hung_or_lost(error: WorkerLostError, folder: Path, begin: float) -> RuntimeError:
    """Why a worker was lost: NCCL ends the process of a rank whose collective call hangs.

    The rank has then written its stacks, and raises nothing.

    Args:
        folder: The run's, in which ranks write their stacks.
        begin: Seconds since the epoch; older stacks are those of an earlier start.
    """
    written = [
        path
        for path in sorted(folder.glob("rank_*.stacks"))
        if path.stat().st_size and path.stat().st_mtime >= begin
    ]
    if not written:
        return error
    return HungError(
        "a collective call did not end within resources.collective_timeout_s, and a rank was ended "
        f"for it. What the ranks were at is in {', '.join(map(str, written))}; --resume goes on "
        f"from the last checkpoint. ({error})"
    )


def _prompt_cost(config: Config) -> PromptCost:
    """As micro-batches count it, from the headers of the media: nothing is decoded here."""
    family = family_of(config)
    of_vision_token = 0.0 if config.model.freeze_vision_tower else config.trainer.vision_token_cost

    def cost(prompt: Prompt) -> float:
        vision = sum(family.media_tokens(medium) for medium in prompt.media)
        return family.prompt_length(prompt) + of_vision_token * vision

    return cost


def _wait_for_room(actor: Any, timeout_s: float) -> None:
    """Wait until an actor runs; its machine may be gone.

    Raises:
        WorkerLostError: The cluster has no room for it.
    """
    _, lost = outcomes({0: actor.__ray_ready__.remote()}, timeout_s)
    if lost:
        raise WorkerLostError(
            f"the Ray cluster has no room for another engine ({lost[0]}); --resume goes on from "
            "the last checkpoint, with what is left of the cluster"
        )


def _placement(resources: ResourcesConfig, engine_gpus: int) -> Callable[..., Any]:
    """Reserve resources for every worker; returns a function that starts an actor on the i-th.

    Raises:
        ValueError: An engine asks for several GPUs, and the cluster has none.
        WorkerLostError: The cluster is too small, or busy.
    """
    import ray
    from ray.util.placement_group import placement_group
    from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

    gpus = ray.cluster_resources().get("GPU", 0) > 0
    if engine_gpus > 1 and not gpus:
        raise ValueError(
            f"rollout.tensor_parallel_size={engine_gpus}, and the Ray cluster has no GPU; set "
            "rollout.tensor_parallel_size=1"
        )
    needs = [1] * resources.ranks + [engine_gpus] * resources.engines
    bundles = [{"CPU": 1, "GPU": n} if gpus else {"CPU": 1} for n in needs]
    group = placement_group(bundles, strategy="PACK")
    if not group.wait(resources.start_timeout_s):
        raise WorkerLostError(
            f"the Ray cluster has no room for {resources.ranks} ranks and {resources.engines} "
            f"engines ({bundles}) within {resources.start_timeout_s:.0f} s; it has "
            f"{ray.cluster_resources()}. Lower resources.ranks or resources.engines, or add nodes"
        )

    def place(cls: type, index: int, *args: Any) -> Any:
        strategy = PlacementGroupSchedulingStrategy(group, placement_group_bundle_index=index)
        reserved = {"num_cpus": 1, "num_gpus": bundles[index].get("GPU", 0)}
        return ray.remote(cls).options(scheduling_strategy=strategy, **reserved).remote(*args)

    return place
