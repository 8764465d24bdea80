"""Ways to bring weights from the trainer to an engine in another process on the same machine."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol

import torch

from mmr1.rollout.shared_weights import SharedWeights, share_weights
from mmr1.rollout.transfer import SyncClient, WeightSender, WeightSource
from mmr1.rollout.weight_layout import Layout, MappingSource

Ask = Callable[..., Any]
"""Calls a method of the engine, by its name."""
Weights = Mapping[str, torch.Tensor]


class Carrier(Protocol):
    """Brings weights to an engine."""

    def bring(self, ask: Ask, weights: Weights, version: int) -> None:
        """Have the engine load these weights."""
        ...

    def bring_again(self, ask: Ask) -> None:
        """Have a replaced engine load the weights of its predecessor, if any."""
        ...


class SharedMemoryCarrier:
    """Copies weights into main memory that both processes map. It outlives the engine."""

    def __init__(self) -> None:
        self._shared: SharedWeights | None = None
        self._version = 0

    def bring(self, ask: Ask, weights: Weights, version: int) -> None:
        self._version = version
        if self._shared is None:
            self._shared = share_weights(weights)
            ask("share_weights", self._shared)
        else:
            self._shared.write(weights)
        ask("load_shared_weights", version)

    def bring_again(self, ask: Ask) -> None:
        if self._shared is not None:
            ask("share_weights", self._shared)
            ask("load_shared_weights", self._version)


class TransferCarrier:
    """Sends weights by a transfer of vLLM's.

    By its backend ``ipc`` they stay on the GPU that both processes use. The engine's process opens
    the trainer's memory there, a buffer of a GiB or of the largest weight at a time.

    Args:
        connect: Makes the sender to an engine, by a client that calls it.
        device: Where weights are sent from.
    """

    def __init__(
        self,
        connect: Callable[[SyncClient, WeightSource], WeightSender],
        layout: Layout,
        device: str,
    ) -> None:
        self._connect = connect
        self._layout = layout
        self._device = device
        self._sender: WeightSender | None = None
        self._client = _Client()
        self._sent: Weights | None = None

    def bring(self, ask: Ask, weights: Weights, version: int) -> None:
        self._client.ask, self._client.version, self._sent = ask, version, weights
        source = MappingSource(weights, self._layout, self._device)
        if self._device == "cuda":
            # Senders pack on separate streams, which do not wait for the optimizer's.
            torch.cuda.synchronize()
        if self._sender is None:
            self._sender = self._connect(self._client, source)
        self._sender.source = source
        self._sender.send_weights()

    def bring_again(self, ask: Ask) -> None:
        if self._sender is not None:
            self._sender.shutdown()
            self._sender = None
        if self._sent is not None:  # as they were: nothing learns while an engine samples
            self.bring(ask, self._sent, self._client.version)


class _Client:
    """Calls the engine; a ``SyncClient``."""

    def __init__(self) -> None:
        self.version = 0
        self.ask: Ask = lambda *_: None

    def init_weight_transfer_engine(self, init_info: dict[str, Any]) -> None:
        self.ask("init_weight_transfer_engine", init_info)

    def start_weight_update(self) -> None:
        self.ask("start_weight_update")

    def update_weights(self, update_info: Any) -> None:
        self.ask("update_weights", update_info)

    def finish_weight_update(self, weight_version: str | None = None) -> None:
        self.ask("finish_weight_update", self.version)
