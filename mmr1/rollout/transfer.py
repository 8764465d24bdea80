"""The ends of vLLM's transfer of weights, as protocols: what is sent, who is called, who sends."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch


@dataclass(frozen=True, slots=True)
class ParamMeta:
    """Name, dtype and shape of a weight: vLLM's ``ParamMeta``."""

    name: str
    dtype: torch.dtype
    shape: tuple[int, ...]


class WeightSource(Protocol):
    """The weights of a transfer: what vLLM's senders read of its ``WeightSource``."""

    def metadata(self) -> Sequence[ParamMeta]:
        """Descriptions of the weights, in the order of iteration."""
        ...

    def __iter__(self) -> Iterator[tuple[str, torch.Tensor]]: ...


class SyncClient(Protocol):
    """Calls to all engines of a run: vLLM's ``VLLMWeightSyncClient``."""

    def init_weight_transfer_engine(self, init_info: dict[str, Any]) -> None: ...

    def start_weight_update(self) -> None: ...

    def update_weights(self, update_info: Any) -> None: ...

    def finish_weight_update(self, weight_version: str | None = None) -> None: ...


class ReceivingEngine(Protocol):
    """An engine that is sent weights: the calls of vLLM's transfer, in their order."""

    def init_weight_transfer_engine(self, init_info: dict[str, Any]) -> None:
        """Connect with the sender; an earlier connection is ended."""
        ...

    def start_weight_update(self) -> None:
        """Prepare to receive weights."""
        ...

    def update_weights(self, update_info: dict[str, Any]) -> None:
        """Read the weights that the sender sends now."""
        ...

    def finish_weight_update(self, version: int) -> None:
        """Sample with them, and drop what they make stale."""
        ...

    def abandon_weight_update(self) -> None:
        """Abort a transfer: end the connection, and be ready for another one."""
        ...


class WeightSender(Protocol):
    """The trainer's end of a transfer: vLLM's ``TrainerWeightTransferEngine``.

    Attributes:
        source: Weights that are sent next.
    """

    source: Any

    def send_weights(self) -> None:
        """Send the source to all engines, which then sample with it."""
        ...

    def shutdown(self) -> None:
        """End the connection; what waits for it fails."""
        ...
