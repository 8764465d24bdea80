"""Weights over TCP: what arrives, and what becomes of an end that is left alone."""

from __future__ import annotations

import socket
import struct
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import pytest
import torch

from mmr1.rollout import tcp_transfer
from mmr1.rollout.tcp_transfer import ParamMeta, TcpReceiver, TcpSender


class Weights:
    """A ``WeightSource``."""

    def __init__(self, tensors: dict[str, torch.Tensor]) -> None:
        self.tensors = tensors

    def metadata(self) -> list[ParamMeta]:
        return [ParamMeta(n, t.dtype, tuple(t.shape)) for n, t in self.tensors.items()]

    def __iter__(self) -> Iterator[tuple[str, torch.Tensor]]:
        return iter(self.tensors.items())


class Engines:
    """Receivers in threads of this process; a ``SyncClient`` that records its calls."""

    def __init__(self, count: int) -> None:
        self.receivers = [TcpReceiver() for _ in range(count)]
        self.received: list[dict[str, torch.Tensor]] = [{} for _ in range(count)]
        self.chunks: list[int] = []
        self.calls: list[str] = []
        self._threads = ThreadPoolExecutor(count)

    def init_weight_transfer_engine(self, init_info: dict[str, Any]) -> None:
        self.calls.append("init")
        for receiver in self.receivers:
            receiver.connect(**init_info)

    def start_weight_update(self) -> None:
        self.calls.append("start")

    def update_weights(self, update_info: dict[str, Any]) -> None:
        self.calls.append("update")
        done = [self._threads.submit(self._receive, i, update_info) for i in self._places()]
        for future in done:
            future.result(timeout=60)

    def finish_weight_update(self, weight_version: str | None = None) -> None:
        self.calls.append("finish")

    def _places(self) -> Sequence[int]:
        return range(len(self.receivers))

    def _receive(self, i: int, update_info: dict[str, Any]) -> None:
        def load(chunk: list[tuple[str, torch.Tensor]]) -> None:
            self.received[i].update(chunk)
            self.chunks.append(sum(t.nbytes for _, t in chunk))

        self.receivers[i].receive(**update_info, load=load)


@contextmanager
def sender_to(engines: Engines, timeout_s: float = 60) -> Iterator[TcpSender]:
    sender = TcpSender(engines, "127.0.0.1", len(engines.receivers), timeout_s, chunk_bytes=100)
    try:
        yield sender
    finally:
        sender.shutdown()


def some_weights() -> dict[str, torch.Tensor]:
    return {
        "half": torch.randn(5, 7).to(torch.bfloat16),
        "turned": torch.randn(4, 6).T,
        "scale": torch.tensor(2.5),
        "nothing": torch.empty(0, 3),
        "large": torch.randn(300, 400),
    }


def test_every_engine_gets_the_same_bytes_as_often_as_they_are_sent():
    engines = Engines(2)
    with sender_to(engines) as sender:
        for _ in range(2):
            sender.source = Weights(some_weights())
            sender.send_weights()
            for received in engines.received:
                assert received.keys() == sender.source.tensors.keys()
                for name, weight in sender.source.tensors.items():
                    assert received[name].dtype == weight.dtype
                    assert torch.equal(received[name], weight)
    assert engines.calls == ["init", *["start", "update", "finish"] * 2]  # connected once


def test_small_weights_are_loaded_together_and_large_ones_apart():
    engines = Engines(1)
    with sender_to(engines) as sender:
        sender.source = Weights(some_weights())
        sender.send_weights()
    assert engines.chunks == [70 + 96, 4 + 300 * 400 * 4, 0]


def test_a_receiver_whose_sender_is_gone_fails_at_once():
    engines = Engines(1)
    with sender_to(engines, timeout_s=600):
        info = {"names": ["w"], "dtype_names": ["float32"], "shapes": [[3]]}
        waiting = engines._threads.submit(engines._receive, 0, info)
    with pytest.raises(ConnectionError, match="ended the transfer of weights"):
        waiting.result(timeout=60)


class Dying(Engines):
    """An engine that dies when it is to receive weights."""

    def update_weights(self, update_info: dict[str, Any]) -> None:
        self.receivers[0].close()
        raise RuntimeError("the engine died")


def test_a_sender_whose_engine_is_gone_fails_at_once():
    with sender_to(Dying(2), timeout_s=600) as sender:
        sender.source = Weights({str(i): torch.randn(2**20) for i in range(32)})
        with pytest.raises((OSError, RuntimeError), match=r"died|reset|[Pp]ipe"):
            sender.send_weights()


class Refusing(Engines):
    """An engine that fails at the first chunk and stays; its client ends the transfer then."""

    sender: TcpSender
    sending = threading.Event()

    def update_weights(self, update_info: dict[str, Any]) -> None:
        def load(chunk: list[tuple[str, torch.Tensor]]) -> None:
            raise KeyError("an unknown weight")

        try:
            self.receivers[0].receive(**update_info, load=load)
        except KeyError:
            assert self.sending.wait(60)
            self.sender.shutdown()
            raise


class Watched(Weights):
    """Tells when the sender has asked for the last of its weights, of which none was read."""

    def __init__(self, tensors: dict[str, torch.Tensor], sending: threading.Event) -> None:
        super().__init__(tensors)
        self.sending = sending

    def __iter__(self) -> Iterator[tuple[str, torch.Tensor]]:
        for name, tensor in self.tensors.items():
            if name == "large":
                threading.Timer(0.5, self.sending.set).start()
            yield name, tensor


def test_the_error_of_an_engine_that_stays_ends_the_sending():
    """Also where the sender waits for buffers that nobody empties."""
    engines = Refusing(1)
    with sender_to(engines, timeout_s=15) as engines.sender:
        weights = {"first": torch.ones(100), "large": torch.ones(2**24)}
        engines.sender.source = Watched(weights, engines.sending)
        with pytest.raises(KeyError, match="an unknown weight") as raised:
            engines.sender.send_weights()
        assert not isinstance(raised.value.__cause__, TimeoutError)


class Absent(Engines):
    """An engine that dies before it connects."""

    def init_weight_transfer_engine(self, init_info: dict[str, Any]) -> None:
        raise RuntimeError("the engine is not there")


def test_an_engine_that_does_not_connect_is_not_waited_for():
    with pytest.raises(RuntimeError, match="not there"):
        TcpSender(Absent(1), "127.0.0.1", 1, timeout_s=600)


def guess(stranger: socket.socket) -> None:
    stranger.sendall(bytes(16))


def say_nothing(stranger: socket.socket) -> None:
    """And stay."""


class Intruded(Engines):
    """Somebody else connects first."""

    def __init__(self, intrude: Callable[[socket.socket], None]) -> None:
        super().__init__(1)
        self.intrude = intrude

    def init_weight_transfer_engine(self, init_info: dict[str, Any]) -> None:
        self.other = socket.create_connection((init_info["host"], init_info["port"]), timeout=60)
        self.intrude(self.other)
        super().init_weight_transfer_engine(init_info)


def reset(stranger: socket.socket) -> None:
    stranger.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    stranger.close()


def test_a_stranger_that_resets_its_connection_is_passed_over():
    engines = Intruded(reset)
    with sender_to(engines) as sender:
        sender.source = Weights(some_weights())
        sender.send_weights()
    assert engines.received[0].keys() == some_weights().keys()


@pytest.mark.parametrize("intrude", [guess, say_nothing])
def test_who_does_not_know_the_token_gets_no_weights(intrude, monkeypatch):
    monkeypatch.setattr(tcp_transfer, "_TOKEN_S", 0.2)
    engines = Intruded(intrude)
    with sender_to(engines, timeout_s=5) as sender:
        sender.source = Weights(some_weights())
        sender.send_weights()
        assert engines.other.recv(1) == b""
    assert engines.received[0].keys() == some_weights().keys()
