"""A pretended cluster of 8 GPUs: where ranks and engines are placed, and how engines spread."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from mmr1.config import RolloutConfig
from mmr1.trainer.distributed.cluster import _placement
from mmr1.trainer.distributed.ray_calls import get

pytest.importorskip("ray", reason="Ray is not installed")


@pytest.fixture
def eight_gpus() -> Iterator[None]:
    """Ray only counts GPUs; none is there."""
    import ray

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


class Worker:
    """Looks at what Ray and vLLM make of its place."""

    def gpus(self) -> str:
        return os.environ["CUDA_VISIBLE_DEVICES"]

    def backends(self) -> list[str | None]:
        """vLLM's own choice, and that of our settings."""
        from vllm.config import ParallelConfig

        from mmr1.rollout.vllm import parallel_settings

        settings = parallel_settings(RolloutConfig(tensor_parallel_size=2))
        own_choice = ParallelConfig(tensor_parallel_size=2)
        ours = ParallelConfig(**settings)
        return [own_choice.distributed_executor_backend, ours.distributed_executor_backend]


def test_each_worker_has_its_gpus(eight_gpus):
    place = _placement([1] * 4 + [2] * 2, 60, [])
    workers = [place(Worker, i) for i in range(6)]
    of_worker = [gpus.split(",") for gpus in get([w.gpus.remote() for w in workers])]
    assert [len(gpus) for gpus in of_worker] == [1, 1, 1, 1, 2, 2]
    assert len({gpu for gpus in of_worker for gpu in gpus}) == 8


@pytest.mark.slow
@pytest.mark.vllm
def test_an_engine_of_two_gpus_starts_its_own_processes(eight_gpus):
    """In an actor with a placement group vLLM would take Ray, and refuse a bundle of two GPUs."""
    pytest.importorskip("vllm", reason="vLLM is not installed")
    place = _placement([1, 2], 60, [])
    assert get([place(Worker, 1).backends.remote()])[0] == ["ray", "mp"]
