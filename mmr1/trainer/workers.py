"""Trainer ranks and rollout engines as Ray actors, behind the protocols of a single process.

The process that runs the loop holds the sampler, the rewards and the metrics; a rank holds a shard
of the policy and, with a KL term, of the reference. Ranks get whole groups, about equal in cost.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields, replace
from functools import wraps
from pathlib import Path
from typing import Any, TypeVar, cast

import numpy as np
import torch

from mmr1.config import Config, ResourcesConfig, SamplingConfig
from mmr1.rollout.engine import Probe, Request
from mmr1.trainer import build
from mmr1.trainer.forward.micro_batches import balanced
from mmr1.trainer.forward.sequences import completion_mask
from mmr1.trainer.learners import build_learners
from mmr1.trainer.reference import Reference
from mmr1.trainer.team import WorkerLostError
from mmr1.types import Experience, Prompt, RolloutGroup, StepStats

Method = TypeVar("Method", bound=Callable[..., Any])


@dataclass(frozen=True, slots=True)
class Cluster:
    """What runs on Ray of a training run."""

    policy: RayPolicy
    reference: RayReference | None
    engines: RayEngines


@contextmanager
def on_ray(config: Config) -> Iterator[Cluster]:
    """Start ranks and engines on the cluster that ``resources`` names; end them afterwards.

    Raises:
        ValueError: Ray is not installed, or a worker refused its configuration.
        WorkerLostError: The cluster has not got what ``resources`` asks for.
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
        _connect(resources)
    actors: list[Any] = []
    try:
        place = _placement(resources, config.rollout.tensor_parallel_size)
        ranks = [place(Rank, i, config, i) for i in range(resources.ranks)]
        engines = [place(Engine, resources.ranks + i, config) for i in range(resources.engines)]
        actors += [*ranks, *engines]
        address = _get([ranks[0].free_address.remote()])[0]
        _get([rank.build.remote(address) for rank in ranks] + [e.build.remote() for e in engines])
        reference = RayReference(ranks) if config.algorithm.kl_coef else None
        yield Cluster(RayPolicy(ranks), reference, RayEngines(engines))
    finally:
        for actor in actors:
            ray.kill(actor)
        if not joined:
            ray.shutdown()


def collective(method: Method) -> Method:
    """A method that all ranks are asked for together; a hang in it is told, see ``watched``."""

    @wraps(method)
    def call(self: Rank, *args: Any, **kwargs: Any) -> Any:
        from mmr1.trainer import ranks

        with ranks.watched(self.config.resources.collective_timeout_s, self.stacks):
            return method(self, *args, **kwargs)

    return cast(Method, call)


class Rank:
    """An actor: one rank of the trainer.

    Attributes:
        stacks: Where it was when a collective call hung.
    """

    def __init__(self, config: Config, rank: int) -> None:
        self.config, self._rank = config, rank
        self.stacks = Path(config.trainer.output_dir).resolve() / f"rank_{rank}.stacks"

    def free_address(self) -> str:
        """``host:port`` where the ranks can meet, on the node of this one."""
        import ray

        with socket.socket() as free:
            free.bind(("", 0))
            return f"{ray.util.get_node_ip_address()}:{free.getsockname()[1]}"

    def build(self, address: str) -> None:
        """Load the model and shard it: a collective call too."""
        from mmr1.trainer import ranks

        config, resources = self.config, self.config.resources
        size = resources.ranks
        build.set_up(config)
        mesh = ranks.join(
            self._rank, size, address, resources.collective_timeout_s, resources.shard
        )
        family = build.family_of(config)
        self._learners = build_learners(
            config,
            family,
            build.media_cache(family, config),
            team=ranks.Ranks(self._rank, size),
            shard=lambda model: ranks.shard(model, mesh),
        )

    @collective
    def logprobs(self, groups: Sequence[RolloutGroup], of_reference: bool) -> torch.Tensor:
        scorer = self._learners.reference if of_reference else self._learners.policy
        assert scorer is not None
        return scorer.logprobs(groups)

    @collective
    def update(self, part: Experience) -> StepStats:
        return self._learners.policy.update(part)

    @collective
    def weights(self) -> dict[str, torch.Tensor] | None:
        """The whole weights in CPU memory, from rank 0 only."""
        return self._from_first(self._learners.policy.weights())

    @collective
    def save(self, folder: Path) -> None:
        self._learners.policy.snapshot()(folder)

    @collective
    def load(self, checkpoint: Path, state: dict[str, Any]) -> None:
        self._learners.policy.load_snapshot(checkpoint)
        self._learners.policy.load_state_dict(state)

    def state_dict(self) -> dict[str, Any]:
        return self._learners.policy.state_dict()

    @collective
    def refresh_reference(self) -> None:
        self._reference.refresh()

    @collective
    def reference_weights(self) -> dict[str, torch.Tensor] | None:
        return self._from_first(self._reference.weights())

    @collective
    def load_reference(self, weights: Mapping[str, torch.Tensor]) -> None:
        self._reference.load_weights(weights)

    @property
    def _reference(self) -> Reference:
        assert self._learners.reference is not None
        return self._learners.reference

    def _from_first(self, weights: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor] | None:
        if self._rank:
            return None
        return {name: tensor.detach().cpu() for name, tensor in weights.items()}


class Engine:
    """An actor: one rollout engine."""

    def __init__(self, config: Config) -> None:
        self._config = config

    def build(self) -> None:
        self._engine = build.engine_of_its_own(self._config)

    def generate(self, requests: Sequence[Request], sampling: SamplingConfig) -> list[RolloutGroup]:
        return self._engine.generate(requests, sampling)

    def load_weights(self, weights: Mapping[str, torch.Tensor], version: int) -> int:
        self._engine.load_weights(weights, version)
        return version

    def probe(self, prompts: Sequence[Prompt]) -> list[Probe]:
        return self._engine.probe(prompts)


class RayPolicy:
    """The policy on all ranks; a ``Policy``."""

    def __init__(self, ranks: Sequence[Any]) -> None:
        self._ranks = ranks
        self.version = 0

    def logprobs(self, groups: Sequence[RolloutGroup]) -> torch.Tensor:
        return _logprobs(self._ranks, groups, of_reference=False)

    def update(self, experience: Experience) -> StepStats:
        groups = [scored.group for scored in experience.groups]
        parts = [part_of(experience, share) for share in _shares(groups, len(self._ranks))]
        stats = _get(
            [rank.update.remote(part) for rank, part in zip(self._ranks, parts, strict=True)]
        )
        self.version = self.state_dict()["version"]
        return stats[0]

    def weights(self) -> Mapping[str, torch.Tensor]:
        return _get([rank.weights.remote() for rank in self._ranks])[0]

    def snapshot(self, copy: bool = False) -> Callable[[Path], None]:
        """The ranks write when the returned function is called; they make no copies before."""

        def fill(folder: Path) -> None:
            _get([rank.save.remote(folder.resolve()) for rank in self._ranks])

        return fill

    def load_snapshot(self, checkpoint: Path) -> None:
        self._checkpoint = checkpoint.resolve()

    def state_dict(self) -> dict[str, Any]:
        return _get([self._ranks[0].state_dict.remote()])[0]

    def load_state_dict(self, state: dict[str, Any]) -> None:
        _get([rank.load.remote(self._checkpoint, state) for rank in self._ranks])
        self.version = state["version"]


class RayReference:
    """The reference policy on all ranks; a ``Reference``."""

    def __init__(self, ranks: Sequence[Any]) -> None:
        self._ranks = ranks

    def logprobs(self, groups: Sequence[RolloutGroup]) -> torch.Tensor:
        return _logprobs(self._ranks, groups, of_reference=True)

    def refresh(self) -> None:
        _get([rank.refresh_reference.remote() for rank in self._ranks])

    def weights(self) -> Mapping[str, torch.Tensor]:
        return _get([rank.reference_weights.remote() for rank in self._ranks])[0]

    def load_weights(self, weights: Mapping[str, torch.Tensor]) -> None:
        import ray

        shared = ray.put(dict(weights))
        _get([rank.load_reference.remote(shared) for rank in self._ranks])


class RayEngines:
    """Several engines as one ``RolloutEngine``: each gets its share of the prompts."""

    def __init__(self, engines: Sequence[Any]) -> None:
        self._engines = engines

    def generate(self, requests: Sequence[Request], sampling: SamplingConfig) -> list[RolloutGroup]:
        # Neighbours stay together: prompts that share an image are next to each other.
        shares = np.array_split(np.arange(len(requests)), len(self._engines))
        calls = [
            engine.generate.remote([requests[i] for i in share], sampling)
            for engine, share in zip(self._engines, shares, strict=True)
            if len(share)
        ]
        return [group for groups in _get(calls) for group in groups]

    def load_weights(self, weights: Mapping[str, torch.Tensor], version: int) -> None:
        import ray

        shared = ray.put(dict(weights))  # once, however many engines read it
        _get([engine.load_weights.remote(shared, version) for engine in self._engines])

    def probe(self, prompts: Sequence[Prompt]) -> list[Probe]:
        return _get([self._engines[0].probe.remote(prompts)])[0]

    def close(self) -> None:
        """``on_ray`` ends the actors."""


def part_of(experience: Experience, groups: Sequence[int]) -> Experience:
    """The experience of some of its groups, by index; their loss weights stay as they are."""
    ends = np.cumsum([len(s.group.completions) for s in experience.groups])
    starts = ends - [len(s.group.completions) for s in experience.groups]
    rows = [row for g in groups for row in range(starts[g], ends[g])]
    index = torch.tensor(rows, dtype=torch.int64)

    def cut(value: Any) -> Any:
        return value[index] if isinstance(value, torch.Tensor) else value

    tensors = {f.name: cut(getattr(experience, f.name)) for f in fields(experience)}
    return replace(experience, **{**tensors, "groups": tuple(experience.groups[g] for g in groups)})


def _logprobs(
    ranks: Sequence[Any], groups: Sequence[RolloutGroup], of_reference: bool
) -> torch.Tensor:
    """``[B, R]``: each rank scores its share of the groups."""
    shares = _shares(groups, len(ranks))
    parts = _get(
        [
            rank.logprobs.remote([groups[i] for i in share], of_reference)
            for rank, share in zip(ranks, shares, strict=True)
        ]
    )
    rows_of = [range(0)] * len(groups)
    end = 0
    for i, group in enumerate(groups):
        rows_of[i] = range(end, end := end + len(group.completions))
    found = torch.zeros(completion_mask(groups).shape)
    for share, part in zip(shares, parts, strict=True):
        rows = [row for i in share for row in rows_of[i]]
        found[rows, : part.shape[1]] = part
    return found


def _shares(groups: Sequence[RolloutGroup], ranks: int) -> list[list[int]]:
    """Group indices of each rank, about equal in tokens; a shared medium counts with its prompt."""
    costs = [len(g.prompt.token_ids) + sum(len(c.token_ids) for c in g.completions) for g in groups]
    return balanced(costs, ranks)


def _connect(resources: ResourcesConfig) -> None:
    """Join the cluster, or start one on this machine that nobody else can reach."""
    import ray

    options: dict[str, Any] = {"log_to_driver": False, "logging_level": "ERROR"}
    if resources.address is not None:
        ray.init(address=resources.address, **options)
        return
    # Ray counts cores to place actors, it does not bind them: a laptop may run more than it has.
    cores = max(os.cpu_count() or 1, resources.ranks + resources.engines)
    ray.init(include_dashboard=False, _node_ip_address="127.0.0.1", num_cpus=cores, **options)


def _placement(resources: ResourcesConfig, engine_gpus: int) -> Callable[..., Any]:
    """Reserve a place for every worker; returns what starts ``cls(*args)`` in the i-th.

    Raises:
        WorkerLostError: The cluster is too small, or busy.
    """
    import ray
    from ray.util.placement_group import placement_group
    from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

    gpus = ray.cluster_resources().get("GPU", 0) > 0
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
        wanted = {"num_cpus": 1, "num_gpus": bundles[index].get("GPU", 0)}
        return ray.remote(cls).options(scheduling_strategy=strategy, **wanted).remote(*args)

    return place


def _get(calls: Sequence[Any]) -> list[Any]:
    """The results in order; the first failure is raised at once, as what it was.

    Raises:
        WorkerLostError: A worker died.
    """
    import ray

    pending = list(calls)
    try:
        while pending:
            done, pending = ray.wait(pending)
            ray.get(done)
        return ray.get(list(calls))
    except ray.exceptions.RayTaskError as error:
        cause = error.cause
        known = isinstance(cause, ValueError) or type(cause).__module__.startswith("mmr1.")
        if known:
            raise cause from None
        raise
    except ray.exceptions.RayActorError as error:
        raise WorkerLostError(
            f"a rank or an engine died ({' '.join(str(error).split())}); --resume goes on from the "
            "last checkpoint"
        ) from error
