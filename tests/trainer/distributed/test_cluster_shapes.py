"""A pretended cluster of 8 GPUs: where ranks and engines are placed, and how engines spread."""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator
from itertools import chain
from typing import Any

import pytest

from mmr1.config import Config, RolloutConfig
from mmr1.trainer.distributed.cluster import (
    _machines,
    _placement,
    places_of,
)
from mmr1.trainer.distributed.rank_actor import Rank
from mmr1.trainer.distributed.ray_calls import get

pytest.importorskip("ray", reason="Ray is not installed")


@pytest.fixture(scope="module")
def a_cluster() -> Iterator[None]:
    """Of 8 GPUs. Ray only counts them; none is there."""
    import ray

    # As every cluster of ours: Ray reads the token once in a process.
    os.environ.setdefault("RAY_AUTH_TOKEN", secrets.token_hex(32))
    os.environ.pop("RAY_AUTH_MODE", None)
    ray.init(
        address="local",
        num_cpus=8,
        num_gpus=8,
        include_dashboard=False,
        log_to_driver=False,
        logging_level="ERROR",
    )
    yield
    ray.shutdown()


@pytest.fixture
def reserved(a_cluster) -> Iterator[list[Any]]:
    """Placement groups, which make room for the next test."""
    import ray

    groups: list[Any] = []
    yield groups
    for group in groups:
        ray.util.remove_placement_group(group)


WIDE = RolloutConfig(engine={"tensor_parallel_size": 2})


class Worker:
    """Looks at what Ray and vLLM make of its place."""

    def gpus(self) -> str:
        return os.environ["CUDA_VISIBLE_DEVICES"]

    def backends(self) -> list[str | None]:
        """vLLM's own choice, and that of our settings."""
        from vllm.config import ParallelConfig

        from mmr1.rollout.vllm_settings import parallel_settings

        settings = parallel_settings(RolloutConfig(engine={"tensor_parallel_size": 2}))
        own_choice = ParallelConfig(tensor_parallel_size=2)
        ours = ParallelConfig(**settings)
        return [own_choice.distributed_executor_backend, ours.distributed_executor_backend]


@pytest.mark.slow
def test_each_worker_has_its_gpus(reserved):
    place = _placement(places_of(WIDE, 4, 2), 60, reserved)
    workers = [place(Worker, i) for i in range(6)]
    of_worker = [gpus.split(",") for gpus in get([w.start(Worker.gpus) for w in workers])]
    assert [len(gpus) for gpus in of_worker] == [1, 1, 1, 1, 2, 2]
    assert len({gpu for gpus in of_worker for gpu in gpus}) == 8


@pytest.mark.slow
@pytest.mark.parametrize("width", [1, 2])
def test_a_colocated_engine_sees_the_gpus_of_its_ranks(reserved, width):
    engine = {"type": "vllm", "colocate": True, "tensor_parallel_size": width}
    place = _placement(places_of(RolloutConfig(engine=engine), 4, 4 // width), 60, reserved)
    ranks = [place(Rank, i, Config(model={"path": "m"}), 4, i, None) for i in range(4)]
    held = get([rank.start(Rank.gpus) for rank in ranks])
    assert len({gpu for (gpu,) in held}) == 4
    shared = [list(chain(*held[i : i + width])) for i in range(0, 4, width)]
    engines = [place(Worker, 4 + i, gpus=gpus) for i, gpus in enumerate(shared)]
    assert get([e.start(Worker.gpus) for e in engines]) == [",".join(gpus) for gpus in shared]


def test_the_machine_of_each_worker_is_known(reserved):
    import ray

    places = places_of(WIDE, 4, 2)
    _placement(places, 60, reserved)
    (node,) = ray.nodes()
    assert _machines(places, reserved[-1]) == [node["NodeID"]] * 6


@pytest.mark.slow
@pytest.mark.vllm
def test_an_engine_of_two_gpus_starts_its_own_processes(reserved):
    """In an actor with a placement group vLLM would take Ray, and refuse a bundle of two GPUs."""
    pytest.importorskip("vllm", reason="vLLM is not installed")
    place = _placement(places_of(WIDE, 1, 1), 60, reserved)
    assert get([place(Worker, 1).start(Worker.backends)])[0] == ["ray", "mp"]
