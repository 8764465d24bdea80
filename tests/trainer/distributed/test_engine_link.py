"""Engines that fail in a transfer of weights and stay, or that a later transfer finds whole."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import psutil
import pytest
import torch

from mmr1.config import Config
from mmr1.rollout.transfer import ParamMeta
from mmr1.trainer.distributed.engine_link import EngineClient, EngineLink, connected
from mmr1.trainer.distributed.errors import TransferError, WorkerLostError
from mmr1.trainer.distributed.rank_actor import Rank
from mmr1.trainer.distributed.ray_calls import Actor, get
from mmr1.trainer.distributed.ray_connection import start_local_cluster
from mmr1.trainer.distributed.ray_engines import RayEngines
from mmr1.trainer.distributed.weight_source import KeptSource

ray = pytest.importorskip("ray", reason="Ray is not installed")


class WithinCalls:
    """A ``WeightSender`` that puts the weights into the calls themselves, which needs no GPU."""

    def __init__(self, client: EngineClient, source: KeptSource) -> None:
        self.source = source
        self._client = client
        client.init_weight_transfer_engine({})

    def send_weights(self) -> None:
        self._client.start_weight_update()
        self._client.update_weights({"weights": list(self.source)})
        self._client.finish_weight_update()

    def shutdown(self) -> None:
        """Nothing is open."""


class Receiving:
    """An engine without a model; it knows the weight ``known`` alone."""

    def __init__(self) -> None:
        self._connected = 0

    def call(self, method: Callable[..., Any], *args: Any) -> Any:
        return getattr(self, method.__name__)(*args)

    def init_weight_transfer_engine(self, info: dict[str, Any]) -> None:
        self._connected += 1

    def start_weight_update(self) -> None:
        """Nothing to prepare."""

    def update_weights(self, info: dict[str, Any]) -> None:
        self._load(info["weights"])

    def finish_weight_update(self, version: int) -> None:
        """Nothing to finish."""

    def abandon_weights(self) -> None:
        """Nothing has come."""

    def connected(self) -> int:
        return self._connected

    def process(self) -> int:
        return os.getpid()

    def _load(self, weights: list[tuple[str, torch.Tensor]]) -> None:
        for name, _ in weights:
            if name != "known":
                raise KeyError(f"no parameter is called {name}")


class Silent(Receiving):
    """It connects, is told what will come, and answers no more."""

    def update_weights(self, info: dict[str, Any]) -> None:
        threading.Event().wait()


class NeverThere(Receiving):
    def init_weight_transfer_engine(self, info: dict[str, Any]) -> None:
        threading.Event().wait()


def actor(cls: type) -> Actor[Any]:
    return Actor(ray.remote(num_cpus=0)(cls).remote())


def ask(engine: Actor[Any], method: Callable[..., Any]) -> Any:
    return get([engine.start(method)])[0]


@pytest.fixture(scope="module")
def engine() -> Iterator[Any]:
    start_local_cluster(1)
    try:
        yield actor(Receiving)
    finally:
        ray.shutdown()


@pytest.fixture
def link(monkeypatch) -> Iterator[EngineLink]:
    monkeypatch.setattr(
        EngineLink, "_sender_for", lambda self, client, source: WithinCalls(client, source)
    )
    settings = Config(model={"path": "a"}, rollout={"engine": "hf", "timeout_s": 600})
    made = EngineLink(settings, "127.0.0.1", 0)
    yield made
    made.close()


def weights(name: str) -> KeptSource:
    tensor = torch.ones(3)
    return KeptSource([ParamMeta(name, tensor.dtype, (3,))], {name: tensor}, "cpu")


@dataclass
class Linked:
    """``SentWeights`` that are sent from this process."""

    link: EngineLink
    source: KeptSource

    def send(self, engines: Sequence[Any], version: int) -> None:
        self.link.send(self.source, engines, version)

    def release(self) -> None:
        """Nothing is kept."""


@pytest.mark.slow
def test_weights_that_no_engine_takes_end_the_run_as_a_lost_worker_does(engine, link):
    """So ``resources.ray.max_restarts`` counts them."""
    engines = RayEngines([engine], lambda i, lost: lost, timeout_s=600, restarts=0)
    with pytest.raises(WorkerLostError, match="no parameter is called strange"):
        engines.load(Linked(link, weights("strange")), 1)


def test_a_late_failure_of_a_former_connection_leaves_the_present_one(engine, link):
    link.send(weights("known"), [engine], 1)
    former = link._client
    link.close()
    link.send(weights("known"), [engine], 2)
    connected = ask(engine, Receiving.connected)
    with pytest.raises(ray.exceptions.RayTaskError):
        former._call(test_a_late_failure_of_a_former_connection_leaves_the_present_one, [()])
    link.send(weights("known"), [engine], 3)
    assert ask(engine, Receiving.connected) == connected


@pytest.mark.slow
def test_a_transfer_to_an_engine_that_is_stuck_ends(link):
    stuck = actor(Receiving)
    process = psutil.Process(ask(stuck, Receiving.process))  # starting is not part of the limit
    link.send(weights("known"), [stuck], 1)
    process.suspend()
    assert link._client is not None
    link._timeout_s = link._client.timeout_s = 5
    ended = "no answer for 5 s|did not reach all engines"  # by the side that waits no longer
    with pytest.raises(TransferError, match=ended):
        link.send(weights("known"), [stuck], 2)
    with pytest.raises(TransferError, match=ended):  # it connects anew
        link.send(weights("known"), [stuck], 3)
    process.kill()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("seconds", "key"),
    [
        ({"rollout": 1, "resources": 60}, "rollout.timeout_s"),
        ({"rollout": 60, "resources": 2}, "half of resources.collective_timeout_s"),
    ],
    ids=["engines'", "ranks'"],
)
@pytest.mark.parametrize("begun", [False, True], ids=["connecting", "sending"])
def test_kept_weights_for_an_engine_that_never_answers_end_by_the_key_that_is_named(
    engine, seconds, key, begun
):
    settings = Config(
        model={"path": "a"},
        rollout={"engine": "hf", "timeout_s": seconds["rollout"]},
        resources={"collective_timeout_s": seconds["resources"]},
    )
    silent = actor(Silent if begun else NeverThere)
    ask(silent, Receiving.process)  # starting is not part of the limit
    rank = Rank(settings, 1, 0, lambda *args, **options: None)
    rank._link = EngineLink(settings, "127.0.0.1", 0)
    rank._kept[3] = weights("known")
    method = "update_weights" if begun else "init_weight_transfer_engine"
    words = rf"did not reach.*lost in {method} \(no answer for 1 s, which is {key}\)"
    with pytest.raises(TransferError, match=words):
        rank.send_kept(3, [silent], 1)
    ray.kill(silent.handle)


def test_an_engine_that_dies_ends_a_connection_that_nothing_interrupts(engine):
    """As NCCL's: whoever connects waits for all others, in a call that has no end."""
    lost = actor(Receiving)
    client = EngineClient([engine, lost], 1, 60, "a limit")
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def connect() -> Any:
            threading.Thread(target=_failing, args=(client,)).start()
            listener.accept()

        ray.kill(lost.handle)
        with pytest.raises(TransferError, match="rollout engine 1 was lost"):
            connected(connect, client)
        listener.shutdown(socket.SHUT_RDWR)


def test_a_connection_that_comes_too_late_is_ended():
    begin, ended = threading.Event(), threading.Event()

    class Late:
        source = None

        def send_weights(self) -> None:
            raise AssertionError("nobody waits for it")

        def shutdown(self) -> None:
            ended.set()

    def connect() -> Late:
        begin.wait()
        return Late()

    client = EngineClient([], 1, 0.1, "a limit")
    with pytest.raises(TransferError, match=r"took longer than 0\.1 s, which is a limit"):
        connected(connect, client)
    begin.set()
    assert ended.wait(60)


def _failing(client: EngineClient) -> None:
    with pytest.raises(TransferError):
        client.start_weight_update()


def test_on_colocated_gpus_a_failure_ends_the_run_and_is_not_repeated(engine, link):
    link._same_gpu = True
    with pytest.raises(WorkerLostError, match="did not reach all engines"):
        link.send(weights("strange"), [engine], 1)
