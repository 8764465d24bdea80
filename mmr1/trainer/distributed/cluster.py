"""The Ray cluster of a run: connect to it, place ranks and engines on it, and end them.

The driver process runs the loop and holds the sampler, the rewards and the metrics. A rank holds a
shard of each model.
"""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import Any, TypeVar

from mmr1.config import Config, RolloutConfig, VllmConfig
from mmr1.progress import report_activity
from mmr1.trainer.distributed.all_ranks import AllRanks, OnRanks, PromptCost
from mmr1.trainer.distributed.colocation import Colocation
from mmr1.trainer.distributed.engine_actor import Engine
from mmr1.trainer.distributed.engine_link import transfer_seconds
from mmr1.trainer.distributed.errors import HungError, WorkerLostError
from mmr1.trainer.distributed.rank_actor import SAVING, SENDING, WATCHING, Build, Rank
from mmr1.trainer.distributed.ray_calls import Actor, get, outcomes
from mmr1.trainer.distributed.ray_connection import join_cluster, start_local_cluster
from mmr1.trainer.distributed.ray_engines import RayEngines
from mmr1.trainer.distributed.ray_policy import RayCritic, RayLearner, RayPolicy, RayReference
from mmr1.trainer.models.loading import vision_token_cost
from mmr1.trainer.models.reference import API_KEY, Reference
from mmr1.trainer.models.training_models import TrainingModels, build_training_models
from mmr1.types import Prompt, RolloutGroup
from mmr1.vision.build import family_of

Built = TypeVar("Built")
Worker = TypeVar("Worker")


@dataclass(frozen=True, slots=True)
class Cluster:
    """The models and the engines of a run, as actors on Ray."""

    policy: RayPolicy
    reference: RayReference | None
    critic: RayCritic | None
    engines: RayEngines
    ranks: AllRanks[TrainingModels]


@contextmanager
def on_ray(config: Config) -> Iterator[Cluster]:
    """Start ranks and engines on the cluster that ``resources`` names; see :func:`workers`."""
    ranks, engines = config.resources.ranks, config.engines
    with workers(config, ranks, engines, build_training_models) as (all_ranks, all_engines):
        policy = RayPolicy(
            all_ranks.part(lambda models: models.policy), config.model.sync_adapters_only
        )
        reference: OnRanks[Reference] = all_ranks.part(lambda models: models.reference)
        critic = all_ranks.part(lambda models: models.critic)
        if config.rollout.colocated:  # they woke up to nothing yet
            all_engines.load(policy.weights(), policy.version)
        mini_batch = config.algorithm.ppo_mini_batch_size
        yield Cluster(
            policy,
            RayReference(reference) if config.algorithm.reference else None,
            RayCritic(critic, mini_batch) if config.algorithm.critic else None,
            all_engines,
            all_ranks,
        )


@contextmanager
def learner_on_ray(
    config: Config, build: Build[Any], group_of: Callable[[Any], RolloutGroup], engines: int = 0
) -> Iterator[tuple[RayLearner[Any], RayEngines]]:
    """Start ``resources.ranks`` ranks with a learner, and engines; see :func:`workers`.

    Args:
        build: Builds a rank's part of the learner.
        group_of: The prompt and completions of an example.
    """
    with workers(config, config.resources.ranks, engines, build) as (all_ranks, all_engines):
        learner = RayLearner(all_ranks.part(lambda learner: learner), group_of)
        if config.rollout.colocated and engines:
            all_engines.load(learner.weights(), 0)
        yield learner, all_engines


@contextmanager
def engines_on_ray(config: Config) -> Iterator[RayEngines]:
    """Start ``resources.engines`` engines with the weights of ``model.path``."""
    with workers(config, 0, config.engines) as (_, engines):
        yield engines


@contextmanager
def connected(config: Config, processes: int) -> Iterator[None]:
    """Connect to the cluster that ``resources`` names, or start a local one with room for so many
    processes; use the connection that exists, if any.

    Raises:
        ValueError: Ray is not installed, or the cluster does not let us in.
    """
    try:
        import ray
    except ImportError as error:
        raise ValueError(
            "resources asks for more than one rank or engine, and Ray, which runs them, is not "
            f"installed ({error}); install 'mmr1[ray]', or set resources.ranks=1 "
            "resources.engines=1"
        ) from error
    if ray.is_initialized():
        yield
        return
    address = config.resources.cluster.address
    with report_activity("starting Ray" if address is None else "joining the Ray cluster"):
        if address is None:
            start_local_cluster(processes)
        else:
            join_cluster(address)
    try:
        yield
    finally:
        ray.shutdown()


@contextmanager
def workers(
    config: Config,
    ranks: int,
    engines: int,
    build: Build[Built] | None = None,
    name: str = "rank",
    beside: int = 0,
) -> Iterator[tuple[AllRanks[Built], RayEngines]]:
    """Start ranks and engines on the cluster that ``resources`` names; end them afterwards.

    Args:
        build: Builds what the ranks hold; None where there are none.
        name: Name of the files in which ranks write their stacks.
        beside: So many processes will be started beside these.

    Raises:
        ValueError: Ray is not installed, the cluster does not let us in, or a worker refused its
            configuration.
        WorkerLostError: The cluster has less than ``resources`` asks for.
    """
    config = config_for_workers(config, ranks, engines)
    with (
        connected(config, ranks + engines + beside),
        _started(config, ranks, engines, build, name) as started,
    ):
        yield started


@contextmanager
def _started(
    config: Config, ranks: int, engines: int, build: Build[Built] | None, name: str
) -> Iterator[tuple[AllRanks[Built], RayEngines]]:
    import ray

    resources = config.resources
    actors: list[Actor[Any]] = []
    reserved: list[Any] = []
    begin = time.time()
    try:
        colocated = config.rollout.colocated
        places = places_of(config.rollout, ranks, engines)
        place = _placement(places, resources.cluster.start_timeout_s, reserved)
        machines = _machines(places, reserved[-1])
        on_machine = [
            *(machines[:ranks].count(machine) for machine in machines[:ranks]),
            *(machines[ranks:].count(machine) for machine in machines[ranks:]),
        ]

        def start(
            cls: type[Worker], index: int, *args: Any, gpus: Sequence[str] = ()
        ) -> Actor[Worker]:
            actor = place(cls, index, config, on_machine[index], *args, gpus=gpus)
            actors.append(actor)
            return actor

        def replace(i: int, engine: Actor[Engine]) -> Actor[Engine]:
            ray.kill(engine.handle)
            new = start(Engine, ranks + i)
            _wait_for_room(new, resources.cluster.start_timeout_s)
            get([new.start(Engine.build, colocated)])
            return new

        counts = {name.replace("_", " "): ranks, "engine": engines}
        asked = " and ".join(f"{n} {what}{'s' * (n > 1)}" for what, n in counts.items() if n)
        with report_activity(f"starting {asked} on Ray"):
            trainers = [start(Rank, i, i, build, name) for i in range(ranks)]
            held = get([rank.start(Rank.gpus) for rank in trainers]) if colocated else []
            width = config.rollout.gpus_per_engine
            shared = [list(chain(*held[i * width : (i + 1) * width])) for i in range(engines)]
            samplers = [start(Engine, ranks + i, gpus=shared[i]) for i in range(engines)]
            rendezvous = get([rank.start(Rank.open_rendezvous) for rank in trainers[:1]])
            building = [engine.start(Engine.build, colocated) for engine in samplers]
            if colocated:
                get(building)  # vLLM wants its memory to be free when it starts; then it sleeps
            of_driver = _environment_of_ranks()
            for address in rendezvous:
                building += [rank.start(Rank.build, address, of_driver) for rank in trainers]
            get(building)
        rollout = config.rollout
        all_engines = RayEngines(samplers, replace, rollout.timeout_s, rollout.max_restarts)
        transfers = get([rank.start(Rank.transfers_weights) for rank in trainers])
        all_ranks: AllRanks[Built] = AllRanks(
            trainers,
            all(transfers),
            prompt_cost(config),
            resources.context_parallel_size,
            transfer_seconds(config),
            resources.collective_timeout_s,
        )
        if colocated:
            colocation = Colocation(
                all_engines.call, all_engines.send, all_ranks.make_room, all_ranks.take_back
            )
            all_engines.colocation = all_ranks.colocation = colocation
        try:
            yield all_ranks, all_engines
        except WorkerLostError as error:
            raise hung_or_lost(error, Path(config.trainer.output_dir), begin) from error
    finally:
        for actor in actors:
            ray.kill(actor.handle)
        for group in reserved:  # else it would last as long as the connection
            ray.util.remove_placement_group(group)


def config_for_workers(config: Config, ranks: int, engines: int) -> Config:
    """The configuration for these workers: ranks alone, or engines alone, do not share GPUs."""
    if (ranks and engines) or not config.rollout.colocated:
        return config
    placed = ["colocate", *(["offload_trainer"] if config.rollout.offload_trainer else [])]
    return config.changed({f"rollout.engine.{key}": False for key in placed})


def _environment_of_ranks() -> dict[str, str]:
    """Environment variables for the ranks: the key of a reference server, which they ask."""
    return {API_KEY: os.environ[API_KEY]} if API_KEY in os.environ else {}


def hung_or_lost(error: WorkerLostError, folder: Path, begin: float) -> RuntimeError:
    """The error for a lost worker: NCCL ends the process of a rank whose collective call hangs.

    The rank has then written its stacks, and raises nothing.

    Args:
        folder: The run's, in which ranks write their stacks.
        begin: Seconds since the epoch; older stacks are those of an earlier start.
    """
    written = [
        path
        for path in sorted(folder.glob("*rank_*.stacks"))
        if path.stat().st_size and path.stat().st_mtime >= begin
    ]
    if not written:
        return error
    return HungError(
        "a collective call did not end within resources.collective_timeout_s, and a rank was ended "
        f"for it. What the ranks were at is in {', '.join(map(str, written))}; --resume continues "
        f"from the last checkpoint. ({error})"
    )


def prompt_cost(config: Config) -> PromptCost:
    """The cost of a prompt as micro-batches count it, from the headers of its media."""
    family = family_of(config)
    of_vision_token = 0.0 if config.model.freeze_vision_tower else vision_token_cost(config)

    def cost(prompt: Prompt) -> float:
        vision = sum(family.media_tokens(medium) for medium in prompt.media)
        own = replace(prompt, observed=())
        return family.prompt_length(own) + of_vision_token * vision

    return cost


def _wait_for_room(actor: Actor[Any], timeout_s: float) -> None:
    """Wait until an actor runs; its machine may be gone.

    Raises:
        WorkerLostError: The cluster is too small for it.
    """
    _, lost = outcomes({0: actor.ready()}, timeout_s)
    if lost:
        raise WorkerLostError(
            f"the Ray cluster has no room for another engine ({lost[0]}); --resume continues from "
            "the last checkpoint, with what is left of the cluster"
        )


@dataclass(frozen=True, slots=True)
class Places:
    """The places of workers on the cluster.

    Attributes:
        bundles: GPUs of each bundle of resources, which lies on one machine.
        workers: The bundle of each worker, and the GPUs that it reserves: none for an engine that
            takes turns with the ranks of its bundle.
        wide: The keys that give an engine several GPUs, with their values; empty for one GPU.
    """

    bundles: list[int]
    workers: list[tuple[int, int]]
    wide: str = ""


def places_of(rollout: RolloutConfig, ranks: int, engines: int) -> Places:
    """Give every rank, and after them every engine, its own GPUs.

    A colocated engine has those of neighbouring ranks, which lie on one machine.
    """
    width, engine = rollout.gpus_per_engine, rollout.engine
    wide = engine.gpus_as_set if engines and isinstance(engine, VllmConfig) else ""
    if rollout.colocated:
        of_ranks = [(i // width, 1) for i in range(ranks)]
        return Places([width] * engines, of_ranks + [(i, 0) for i in range(engines)], wide)
    bundles = [1] * ranks + [width] * engines
    return Places(bundles, list(enumerate(bundles)), wide)


def _machines(places: Places, group: Any) -> list[str]:
    """The machine of each worker, by the id of its Ray node."""
    import ray

    nodes = ray.util.placement_group_table(group)["bundles_to_node_id"]
    return [nodes[bundle] for bundle, _ in places.workers]


def _placement(places: Places, timeout_s: float, groups: list[Any]) -> Callable[..., Any]:
    """Reserve resources for every worker; returns a function that starts an actor on the i-th.

    With ``gpus`` the actor sees these, which others have reserved.

    Args:
        places: GPUs count where the cluster has some.
        groups: The placement group is added to it, for whoever removes it.

    Raises:
        ValueError: An engine asks for several GPUs, and the cluster has none.
        WorkerLostError: The cluster is too small, or busy.
    """
    import ray
    from ray.util.placement_group import placement_group
    from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

    has_gpus = ray.cluster_resources().get("GPU", 0) > 0
    if places.wide and not has_gpus:
        raise ValueError(f"{places.wide}, and the Ray cluster has no GPU; leave it out")
    cores = Counter(bundle for bundle, reserved in places.workers if reserved)
    bundles = [
        {"CPU": cores[i], "GPU": n} if has_gpus else {"CPU": cores[i]}
        for i, n in enumerate(places.bundles)
    ]
    group = placement_group(bundles, strategy="PACK")
    groups.append(group)
    if not group.wait(timeout_s):
        raise WorkerLostError(
            f"the Ray cluster has no room for {len(bundles)} ranks and engines ({bundles}) within "
            f"{timeout_s:.0f} s; it has "
            f"{ray.cluster_resources()}. Lower resources.ranks or resources.engines, or add nodes"
        )

    def place(cls: type[Worker], index: int, *args: Any, gpus: Sequence[str] = ()) -> Actor[Worker]:
        bundle, reserved = places.workers[index]
        strategy = PlacementGroupSchedulingStrategy(group, placement_group_bundle_index=bundle)
        options = {
            "scheduling_strategy": strategy,
            "num_cpus": min(reserved, 1),
            "num_gpus": reserved if has_gpus else 0,
        }
        if gpus:  # Ray gives no worker a part of several GPUs
            options["runtime_env"] = {"env_vars": _seeing(gpus)}
        if cls is Rank:
            options["concurrency_groups"] = {SAVING: 1, SENDING: 1, WATCHING: 1}
        return Actor(ray.remote(**options)(cls).remote(*args))

    return place


def _seeing(gpus: Sequence[str]) -> dict[str, str]:
    """Environment variables of a worker that sees these GPUs and reserves none."""
    noset = "RAY_EXPERIMENTAL_NOSET_CUDA_VISIBLE_DEVICES"
    return {"CUDA_VISIBLE_DEVICES": ",".join(gpus), noset: "1"}
