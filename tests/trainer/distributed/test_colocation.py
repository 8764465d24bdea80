"""Ranks and engines that share GPUs: the order in which they take turns."""

from __future__ import annotations

import pytest

from mmr1.config import Config
from mmr1.trainer.distributed.cluster import of_workers
from mmr1.trainer.distributed.colocation import Colocation

WAKING = ["free", "wake_up weights", "send", "free", "wake_up kv_cache"]


class Recorder:
    """Engines and ranks that write down what is asked of them."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.colocation = Colocation(
            lambda *asked: self.calls.append(" ".join(asked)),
            lambda: self.calls.append("send"),
            lambda: self.calls.append("free"),
        )

    def taken(self) -> list[str]:
        calls, self.calls[:] = list(self.calls), []
        return calls


def test_the_order_of_a_step():
    recorder = Recorder()
    recorder.colocation.learn()
    assert recorder.taken() == []  # the engines sleep already
    recorder.colocation.sample()
    assert recorder.taken() == WAKING  # to weights of the ranks, the first time too
    recorder.colocation.sample()
    assert recorder.taken() == []
    recorder.colocation.learn()
    recorder.colocation.learn()
    assert recorder.taken() == ["sleep"]
    recorder.colocation.sample()
    assert recorder.taken() == WAKING


def test_engines_that_did_not_wake_up_are_not_taken_for_awake():
    calls = []

    def call(*asked: str) -> None:
        calls.append(" ".join(asked))
        if len(calls) == 1:
            raise RuntimeError("lost")

    colocation = Colocation(call, lambda: None, lambda: None)
    with pytest.raises(RuntimeError, match="lost"):
        colocation.sample()
    colocation.sample()
    assert calls == ["wake_up weights", "wake_up weights", "wake_up kv_cache"]


def colocated(rollout: dict[str, object] | None = None, **resources: object) -> Config:
    return Config(
        model={"path": "m"},
        rollout={"engine": "vllm", **(rollout or {})},
        resources={"ranks": 2, "engines": 2, "colocate": True, **resources},
    )


@pytest.mark.parametrize(
    ("rollout", "resources", "remedy"),
    [
        ({"engine": "hf"}, {}, "rollout.engine=hf: only vLLM can sleep"),
        ({}, {"engines": 1}, "resources.ranks=2 engines=1: each rank shares its GPU"),
        ({"tensor_parallel_size": 2}, {}, "rollout.tensor_parallel_size=2: an engine shares"),
        ({"max_off_policy_steps": 1}, {}, "rollout.max_off_policy_steps=1: engines sleep"),
    ],
)
def test_what_cannot_be_colocated_is_refused(rollout, resources, remedy):
    with pytest.raises(ValueError, match=f"resources.colocate and {remedy}"):
        colocated(rollout, **resources)


def test_a_colocated_run_is_one_on_ray_that_shares_memory():
    alone = colocated(ranks=1, engines=1)
    assert alone.resources.distributed
    assert alone.gpu_memory_utilization == 0.5


def test_engines_of_an_evaluation_have_the_whole_memory_of_their_gpus():
    """No rank shares them, whatever the training run that the configuration is of did."""
    shared = Config(
        model={"path": "a"},
        rollout={"engine": "vllm"},
        resources={"ranks": 2, "engines": 2, "colocate": True},
    )
    assert of_workers(shared, 2, 2).gpu_memory_utilization == 0.5
    for ranks, engines in ((0, 2), (2, 0)):
        alone = of_workers(shared, ranks, engines)
        assert alone.gpu_memory_utilization == 0.9
        assert not alone.resources.colocate
