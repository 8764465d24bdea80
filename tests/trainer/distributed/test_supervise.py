"""Runs that are started again, on what is left."""

from __future__ import annotations

from pathlib import Path

import pytest

from mmr1.config import Config, ResourcesConfig
from mmr1.trainer.distributed.errors import HungError, WorkerLostError
from mmr1.trainer.distributed.supervise import fitted, supervised


def config(max_restarts: int = 0, **resources: object) -> Config:
    ray = {"ray": {"max_restarts": max_restarts}}
    return Config(model={"path": "a"}, resources={"ranks": 2} | ray | resources)


def test_a_run_is_started_again_from_its_checkpoint_a_bounded_number_of_times(caplog):
    resumed: list[bool] = []

    def run(settings: Config, *, resume: bool) -> Path:
        resumed.append(resume)
        if len(resumed) < 3:
            raise (WorkerLostError, HungError)[len(resumed) - 1]("rank 1 died")
        return Path("checkpoint")

    assert supervised(run, config(max_restarts=2), resume=False, samples=True) == Path("checkpoint")
    assert resumed == [False, True, True]
    assert "rank 1 died. Started again, 2 of 2 times, with 2 ranks and 1 engines" in caplog.text
    resumed.clear()
    with pytest.raises(HungError):
        supervised(run, config(max_restarts=1), resume=True, samples=True)
    assert resumed == [True, True]
    resumed.clear()
    with pytest.raises(WorkerLostError):
        supervised(run, config(), resume=False, samples=True)
    assert resumed == [False]


def test_another_error_ends_the_run():
    def run(settings: Config, *, resume: bool) -> Path:
        raise RuntimeError("the loss is nan")

    with pytest.raises(RuntimeError, match="the loss is nan"):
        supervised(run, config(max_restarts=5), resume=False, samples=True)


@pytest.mark.parametrize(
    ("resources", "engine_size", "room", "left"),
    [
        ({"ranks": 8, "engines": 4}, 2, 16, (8, 4)),
        ({"ranks": 8, "engines": 4}, 2, 8, (4, 2)),
        ({"ranks": 8, "engines": 4}, 2, 4, (2, 1)),
        ({"ranks": 8, "engines": 4, "fsdp_size": 4}, 1, 11, (8, 3)),
        ({"ranks": 8, "engines": 4, "fsdp_size": 4}, 1, 9, (4, 3)),
        ({"ranks": 4, "engines": 4, "fsdp_size": 4}, 1, 6, (4, 2)),
        ({"ranks": 8, "engines": 4, "context_parallel_size": 4}, 1, 11, (8, 3)),
        ({"ranks": 12, "engines": 4, "fsdp_size": 4, "context_parallel_size": 6}, 1, 15, (12, 3)),
        ({"ranks": 2, "engines": 6}, 1, 7, (2, 5)),
        ({"ranks": 1, "engines": 4}, 1, 3, (1, 2)),
    ],
)
def test_ranks_and_engines_fit_what_is_left(resources, engine_size, room, left):
    found = fitted(ResourcesConfig(**resources), engine_size, room, samples=True, colocated=False)
    assert (found.ranks, found.engines) == left


def test_ranks_are_whole_contexts():
    with pytest.raises(ValueError, match="context_parallel_size=3 does not divide ranks=4; set"):
        ResourcesConfig(ranks=4, context_parallel_size=3)
    with pytest.raises(ValueError, match="context_parallel_size=2 does not divide ranks=1"):
        config(ranks=1, context_parallel_size=2)


@pytest.mark.parametrize(("room", "left"), [(8, 8), (16, 8), (5, 4), (2, 2)])
def test_colocated_ranks_and_engines_become_fewer_together(room, left):
    wanted = ResourcesConfig(ranks=8, fsdp_size=2)
    found = fitted(wanted, 1, room, samples=True, colocated=True)
    shared = Config(model={"path": "a"}, rollout={"engine": {"colocate": True}}, resources=found)
    assert (found.ranks, shared.engines) == (left, left)


@pytest.mark.parametrize(
    ("resources", "room", "left"),
    [
        ({"ranks": 4}, 4, 4),
        ({"ranks": 4, "fsdp_size": 4}, 4, 4),
        ({"ranks": 4}, 3, 3),
        ({"ranks": 8, "fsdp_size": 2, "engines": 8}, 5, 4),
    ],
)
def test_without_sampling_the_ranks_have_all_the_room(resources, room, left):
    found = fitted(ResourcesConfig(**resources), 1, room, samples=False, colocated=False)
    assert (found.ranks, found.engines) == (left, resources.get("engines", 1))


SPLIT = {"samples": True, "colocated": False}
SHARED = {"samples": True, "colocated": True}
OFFLINE = {"samples": False, "colocated": False}


@pytest.mark.parametrize(
    ("resources", "engine_size", "room", "runs"),
    [
        ({"ranks": 8, "engines": 2, "fsdp_size": 4}, 1, 4, SPLIT),
        ({"ranks": 8, "engines": 4}, 2, 3, SPLIT),  # one rank and one engine do not run on Ray
        ({"ranks": 2, "engines": 2}, 1, 2, SPLIT),
        ({"ranks": 2, "engines": 2}, 1, 0, SPLIT),
        ({"ranks": 2}, 1, 0, SHARED),
        ({"ranks": 4}, 1, 1, OFFLINE),
        ({"ranks": 4, "fsdp_size": 4}, 1, 3, OFFLINE),
    ],
)
def test_too_little_left_is_named(resources, engine_size, room, runs):
    with pytest.raises(WorkerLostError, match=f"has {room} devices left, too few"):
        fitted(ResourcesConfig(**resources), engine_size, room, **runs)


@pytest.mark.slow
def test_a_restart_begins_from_the_wanted_configuration():
    """A cluster that lost a node and got it back has all its ranks again."""
    ray = pytest.importorskip("ray")
    sizes: list[tuple[int, int]] = []
    wanted = config(ranks=3, engines=2, ray={"address": "auto", "max_restarts": 2})

    def cluster_of(cpus: int) -> None:
        ray.shutdown()
        ray.init(
            address="local",
            num_cpus=cpus,
            num_gpus=0,
            include_dashboard=False,
            log_to_driver=False,
            _node_ip_address="127.0.0.1",
        )

    def run(settings: Config, *, resume: bool) -> Path:
        sizes.append((settings.resources.ranks, settings.resources.engines))
        if len(sizes) == 3:
            return Path("checkpoint")
        cluster_of((3, 5)[len(sizes) - 1])
        raise WorkerLostError("rank 1 died")

    try:
        supervised(run, wanted, resume=False, samples=True)
    finally:
        ray.shutdown()
    assert sizes == [(3, 2), (2, 1), (3, 2)]
