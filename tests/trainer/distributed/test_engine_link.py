"""Engines that fail in a transfer of weights and stay, or that a later transfer finds whole."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pytest
import torch

from mmr1.config import Config
from mmr1.rollout.tcp_transfer import ParamMeta, TcpReceiver
from mmr1.trainer.distributed.engine_link import EngineLink
from mmr1.trainer.distributed.errors import WorkerLostError
from mmr1.trainer.distributed.ray_connection import start_local_cluster
from mmr1.trainer.distributed.ray_engines import RayEngines
from mmr1.trainer.distributed.weight_source import KeptSource

ray = pytest.importorskip("ray", reason="Ray is not installed")


class Receiving:
    """An engine without a model; it knows the weight ``known`` alone."""

    def __init__(self) -> None:
        self._receiver = TcpReceiver()
        self._connected = 0

    def call(self, method: str, *args: Any) -> Any:
        return getattr(self, method)(*args)

    def init_weight_transfer_engine(self, info: dict[str, Any]) -> None:
        self._connected += 1
        self._receiver.connect(**info)

    def start_weight_update(self) -> None:
        """Nothing to prepare."""

    def update_weights(self, info: dict[str, Any]) -> None:
        self._receiver.receive(**info, load=self._load)

    def finish_weight_update(self, version: int) -> None:
        """Nothing to finish."""

    def abandon_weight_update(self) -> None:
        self._receiver.close()

    def connected(self) -> int:
        return self._connected

    def _load(self, weights: list[tuple[str, torch.Tensor]]) -> None:
        for name, _ in weights:
            if name != "known":
                raise KeyError(f"no parameter is called {name}")


@pytest.fixture(scope="module")
def engine() -> Iterator[Any]:
    start_local_cluster(1)
    try:
        yield ray.remote(num_cpus=0)(Receiving).remote()
    finally:
        ray.shutdown()


@pytest.fixture
def link() -> Iterator[EngineLink]:
    settings = Config(model={"path": "a"}, rollout={"engine": "hf", "timeout_s": 60})
    made = EngineLink(settings, "127.0.0.1", 0)
    yield made
    made.close()


def weights(name: str) -> KeptSource:
    tensor = torch.ones(3)
    return KeptSource([ParamMeta(name, tensor.dtype, (3,))], {name: tensor}, "cpu")


@dataclass
class Linked:
    """``RankWeights`` that are sent from this process."""

    link: EngineLink
    source: KeptSource

    def send(self, engines: Sequence[Any], version: int) -> None:
        self.link.send(self.source, engines, version)

    def release(self) -> None:
        """Nothing is kept."""


def test_weights_that_no_engine_takes_end_the_run_as_a_lost_worker_does(engine, link):
    """So ``resources.max_restarts`` counts them."""
    engines = RayEngines([engine], lambda i, actor: actor, timeout_s=60, restarts=0)
    with pytest.raises(WorkerLostError, match="no parameter is called strange"):
        engines.load_weights(Linked(link, weights("strange")), 1)


def test_a_late_failure_of_a_former_connection_leaves_the_present_one(engine, link):
    link.send(weights("known"), [engine], 1)
    former = link._client
    link.close()
    link.send(weights("known"), [engine], 2)
    connected = ray.get(engine.call.remote("connected"))
    with pytest.raises(ray.exceptions.RayTaskError):
        former._call("no_such_method", [()])
    link.send(weights("known"), [engine], 3)
    assert ray.get(engine.call.remote("connected")) == connected


@pytest.mark.vllm
@pytest.mark.skipif(torch.cuda.is_available(), reason="fails for want of a GPU")
def test_on_colocated_gpus_a_failure_ends_the_run_and_is_not_repeated(engine, link):
    pytest.importorskip("vllm", reason="vLLM is not installed")
    link._backend = "ipc"
    with pytest.raises(WorkerLostError, match="did not reach all engines"):
        link.send(weights("known"), [engine], 1)
