"""Reward functions on the machines that sample, in place of the driver's own processes."""

from __future__ import annotations

import logging
import os
import pickle
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence, Set
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mmr1.config import Config, RewardsConfig
from mmr1.faults import tell_fault
from mmr1.files import sha256_of
from mmr1.logs import ROOT
from mmr1.rewards import CompositeReward, RewardItem, build_composite_reward
from mmr1.rewards.sandbox.environment import run_environment
from mmr1.trainer.distributed.ray_calls import Call, Watch, outcomes
from mmr1.types import Reward, Status

logger = logging.getLogger(__name__)

_LOOK_S = 60.0
"""Seconds without a result after which a machine is asked whether it is there, and to answer in."""
Fault = tuple[str, str, int, int]
"""Kind, message, count and level of a fault that a scorer was told."""


@dataclass(frozen=True, slots=True)
class Scored:
    """What a scorer gives for a share of items.

    Attributes:
        values: For each function the rewards of all items; None where a gate before it closed.
        faults: What went wrong meanwhile.
        problem: Why there are no values.
    """

    values: dict[str, list[Reward | None]]
    faults: list[Fault]
    problem: str | None = None


class Scorer:
    """The actor of a machine: reward functions with worker processes of their own.

    Args:
        rewards: Of the functions that it runs.
        folder: The driver's, from which relative paths are read where it is there.
        digests: Of the plugins' files, by path.
        environment: The driver's ``run_environment``. Ray gives its workers that of its own start.
        not_imported: Folders of the driver that Ray imports from, and the driver does not. Workers
            may read what their parent imports from.
    """

    def __init__(
        self,
        rewards: RewardsConfig,
        folder: Path,
        digests: Mapping[Path, bytes],
        environment: Mapping[str, str],
        not_imported: Set[Path],
    ) -> None:
        self._rewards, self._folder, self._digests = rewards, folder, digests
        self._environment, self._not_imported = environment, not_imported
        self._composite: CompositeReward | None = None

    def build(self) -> str | None:
        """Start the workers; why they cannot be started here, or None."""
        for name in run_environment(os.environ).keys() - self._environment.keys():
            del os.environ[name]
        os.environ.update(self._environment)
        sys.path[:] = [p for p in sys.path if Path(p).resolve() not in self._not_imported]
        try:
            if self._folder.is_dir():
                os.chdir(self._folder)
            if changed := [p for p, d in self._digests.items() if sha256_of(p) != d]:
                return f"{changed[0]} is another file there than here"
            self._composite = build_composite_reward(self._rewards)
            self._composite.begin()
        except Exception as error:  # as in ``values``: another machine may do better
            return f"{type(error).__name__}: {error}"
        return None

    def alive(self) -> None:
        """Answers beside what else is asked."""

    def values(self, names: Sequence[str], pickled: bytes) -> Scored:
        """See ``CompositeReward.values``; nothing is raised, for another machine may do better.

        Args:
            pickled: The items.
        """
        assert self._composite is not None
        told = _Told()
        with _attached(told):
            try:
                values = self._composite.values(names, pickle.loads(pickled))
            except Exception as error:
                return Scored({}, told.faults, f"{type(error).__name__}: {error}")
        equal: dict[float, Reward] = {}  # most rewards are 0 or 1: they are pickled once
        columns = {name: [_same(v.get(name), equal) for v in values] for name in names}
        return Scored(columns, told.faults)


def _same(reward: Reward | None, equal: dict[float, Reward]) -> Reward | None:
    """The first reward that is equal to this one, if it is a number and nothing else."""
    if reward is None or reward.status is not Status.OK or reward.components:
        return reward
    assert reward.value is not None
    return equal.setdefault(reward.value, reward)


class _Told(logging.Handler):
    """Keeps the faults that are told, for the driver to tell."""

    def __init__(self) -> None:
        super().__init__(logging.INFO)
        self.faults: list[Fault] = []

    def emit(self, record: logging.LogRecord) -> None:
        if (kind := getattr(record, "fault", None)) is not None:
            count = record.__dict__["count"]
            self.faults.append((kind, record.getMessage(), count, record.levelno))


@contextmanager
def _attached(handler: logging.Handler) -> Iterator[None]:
    root = logging.getLogger(ROOT)
    root.setLevel(logging.INFO)
    root.addHandler(handler)
    try:
        yield
    finally:
        root.removeHandler(handler)


class RayScorers:
    """Scorers on several machines; each gets a share by the number of its engines.

    A machine that is lost, or cannot score, is left out from then on, and others do its share; this
    process does what nobody else is left for.

    Args:
        scorers: Actors of ``Scorer``, by machine.
        engines: How many each machine has.
        here: Scores in this process.
        look_s: Seconds without a result after which a scorer has to show that it is alive, and
            within which it has to.
    """

    def __init__(
        self,
        scorers: Mapping[str, Any],
        engines: Mapping[str, int],
        here: CompositeReward,
        look_s: float = _LOOK_S,
    ) -> None:
        self._scorers = dict(scorers)
        self._engines = engines
        self._here = here
        self._look_s = look_s
        self._closed = False

    def build(self, timeout_s: float) -> None:
        """Wait until the machines are ready; those that are not in time are left out."""
        machines = list(self._scorers)
        calls: dict[int, Call[Any]] = {
            i: Call(self._scorers[machine].build.remote()) for i, machine in enumerate(machines)
        }
        problems, lost = outcomes(calls, timeout_s)
        for i, machine in enumerate(machines):
            if why := lost.get(i) or problems[i]:
                self._leave_out(machine, why)

    def __len__(self) -> int:
        return len(self._scorers)

    def close(self) -> None:
        """End the scorers. Rollouts ahead that are being scored then end without a word."""
        import ray

        self._closed = True
        for scorer in list(self._scorers.values()):
            ray.kill(scorer)

    def values(
        self, names: Sequence[str], items: Sequence[RewardItem], *, whole: bool
    ) -> list[dict[str, Reward]]:
        """See ``OtherMachines``."""
        found: dict[int, dict[str, Reward]] = {}
        left = list(range(len(items)))
        while left and self._scorers:
            shares = self._shares(left, items, whole)
            done = self._asked(names, {m: [items[i] for i in s] for m, s in shares.items()})
            for machine, columns in done.items():
                of_share: list[dict[str, Reward]] = [{} for _ in shares[machine]]
                for name, rewards in columns.items():
                    for values, reward in zip(of_share, rewards, strict=True):
                        if reward is not None:
                            values[name] = reward
                found.update(zip(shares[machine], of_share, strict=True))
            left = [i for machine, share in shares.items() if machine not in done for i in share]
        if left:
            here = self._here.values(names, [items[i] for i in left])
            found.update(zip(left, here, strict=True))
        return [found[i] for i in range(len(items))]

    def _shares(
        self, left: Sequence[int], items: Sequence[RewardItem], whole: bool
    ) -> dict[str, list[int]]:
        """Indices of items by machine: neighbours, and whole groups."""
        machines = list(self._scorers)
        if whole:  # always the same, for it may remember
            return {machines[0]: list(left)}
        groups: dict[int, list[int]] = {}
        for i in left:
            groups.setdefault(items[i].group, []).append(i)
        engines = [self._engines[machine] for machine in machines]
        shares: dict[str, list[int]] = {}
        first, before = 0, 0
        in_order = list(groups.values())
        for machine, count in zip(machines, engines, strict=True):
            before += count
            last = round(len(in_order) * before / sum(engines))
            if share := [i for group in in_order[first:last] for i in group]:
                shares[machine] = share
            first = last
        return shares

    def _asked(
        self, names: Sequence[str], shares: Mapping[str, Sequence[RewardItem]]
    ) -> dict[str, dict[str, list[Reward | None]]]:
        """The values of those machines that gave some; the others are left out."""
        machines = list(shares)
        # Ray pickles by cloudpickle, which asks Python about each object.
        calls: dict[int, Call[Any]] = {
            i: Call(self._scorers[m].values.remote(names, pickle.dumps(shares[m], protocol=5)))
            for i, m in enumerate(machines)
        }
        watch = Watch(self._look_s, lambda pending: self._look([machines[i] for i in pending]))
        answers, lost = outcomes(calls, None, watch=watch)
        for i, why in lost.items():
            self._leave_out(machines[i], why)
        done = {}
        for i, scored in answers.items():
            for kind, message, count, level in scored.faults:
                tell_fault(logger, kind, message, count, level)
            if scored.problem is None:
                done[machines[i]] = scored.values
            else:
                self._leave_out(machines[i], scored.problem)
        return done

    def _look(self, pending: Sequence[str]) -> None:
        """End scorers that do not say that they are alive: their calls then end too."""
        import ray

        calls: dict[int, Call[Any]] = {
            i: Call(self._scorers[machine].alive.remote()) for i, machine in enumerate(pending)
        }
        for i in outcomes(calls, self._look_s)[1]:
            ray.kill(self._scorers[pending[i]])

    def _leave_out(self, machine: str, why: str) -> None:
        import ray

        if self._closed:
            raise RuntimeError("the scorers are closed")
        ray.kill(self._scorers.pop(machine))
        of_node = {node["NodeID"]: node["NodeManagerAddress"] for node in ray.nodes()}
        where = f"{of_node.get(machine, 'a machine')} ({machine[:8]})"
        rest = f"{len(self._scorers)} others do" if self._scorers else "this process does"
        tell_fault(logger, "scorer/lost", f"{where} no longer scores ({why}); {rest}")


@contextmanager
def scored_where_sampled(
    composite: CompositeReward, config: Config, machines: Sequence[str]
) -> Iterator[None]:
    """Inside, rewards are computed on the machines of the engines, where one is not this one.

    Args:
        machines: Of each engine, as the id of its Ray node.
    """
    movable = composite.movable()
    if not movable or not _elsewhere(machines):
        yield
        return
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    functions = {name: composite.config.functions[name] for name in movable}
    rewards = composite.config.model_copy(update={"functions": functions})

    def start(machine: str) -> Any:
        # No CPU of its own: it works while the engines beside it wait. Two calls at a time, for
        # one asks whether it is alive.
        options = {
            "num_cpus": 0,
            "max_concurrency": 2,
            "scheduling_strategy": NodeAffinitySchedulingStrategy(machine, soft=False),
        }
        environment = run_environment(os.environ)
        return ray.remote(**options)(Scorer).remote(
            rewards, Path.cwd(), _digests(rewards), environment, _added_by_ray()
        )

    engines = Counter(machines)
    scorers = {machine: start(machine) for machine in engines}
    others = RayScorers(scorers, engines, composite)
    try:
        others.build(config.resources.start_timeout_s + rewards.start_timeout_s)
        logger.info("rewards are computed on %d machines", len(others))
        with composite.with_others(others):
            yield
    finally:
        others.close()


def _elsewhere(machines: Sequence[str]) -> bool:
    """Whether one of these is not this machine."""
    if not machines:
        return False
    import ray

    return set(machines) != {ray.get_runtime_context().get_node_id()}


def _digests(rewards: RewardsConfig) -> dict[Path, bytes]:
    """Of the files of plugins: a machine that has an older one would give other rewards."""
    named = (
        Path((function.use or name).rpartition(":")[0]).expanduser()
        for name, function in rewards.functions.items()
    )
    return {path: sha256_of(path) for path in named if path.suffix == ".py"}


def _added_by_ray() -> set[Path]:
    """The folder of the driver that Ray's workers import from, where the driver does not."""
    return {Path.cwd()} - {Path(path).resolve() for path in sys.path}
