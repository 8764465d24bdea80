"""Calls to Ray actors."""

from __future__ import annotations

import time

import pytest

from mmr1.trainer.distributed.ray_calls import Actor, outcomes

ray = pytest.importorskip("ray", reason="Ray is not installed")


class Resting:
    def rest(self) -> None:
        time.sleep(60)


def test_a_worker_that_ray_ends_for_want_of_memory_is_lost():
    ray.init(
        address="local",
        num_cpus=1,
        include_dashboard=False,
        log_to_driver=False,
        logging_level="ERROR",
        _system_config={"memory_usage_threshold": 1e-4, "memory_monitor_refresh_ms": 100},
    )
    try:
        actor: Actor[Resting] = Actor(ray.remote(num_cpus=0)(Resting).remote())
        answers, lost = outcomes({3: actor.start(Resting.rest)}, 60)
    finally:
        ray.shutdown()
    assert answers == {}
    assert "low on memory" in lost[3]
