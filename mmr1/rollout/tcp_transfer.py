"""Weights over TCP, from the trainer's process to the processes of engines; needs no GPU.

The calls are those of vLLM's transfer of weights, in the same order: an engine connects once, is
told names and shapes, and reads the tensors while the trainer writes them. Whoever is left alone
learns of it at once, because a connection ends with its process. (Not Gloo: a receiver whose sender
is gone waits there until its time is up.)
"""

from __future__ import annotations

import secrets
import socket
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Protocol

import torch

CHUNK_BYTES = 256 * 2**20
_TOKEN_BYTES = 16
_POLL_S = 1.0
_TOKEN_S = 5.0  # in which whoever connects has to send the token


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


class WeightSender(Protocol):
    """The trainer's end of a transfer: vLLM's ``TrainerWeightTransferEngine``.

    Attributes:
        source: What is sent next.
    """

    source: Any

    def send_weights(self) -> None:
        """Send the source to all engines, which then sample with it."""
        ...

    def shutdown(self) -> None:
        """End the connection; what waits for it fails."""
        ...


class TcpSender:
    """The trainer's end; a ``WeightSender``.

    Args:
        client: Calls the engines.
        host: Address of this machine that they reach.
        workers: How many processes will connect.
        timeout_s: Longest time to wait for one of them.
        chunk_bytes: Of tensors that an engine loads together.

    Raises:
        OSError: Not all have connected in time.
    """

    def __init__(
        self,
        client: SyncClient,
        host: str,
        workers: int,
        timeout_s: float,
        chunk_bytes: int = CHUNK_BYTES,
    ) -> None:
        self.source: WeightSource | None = None
        self._client = client
        self._side = ThreadPoolExecutor(1, "transfer")
        self._connections: list[socket.socket] = []
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        token = secrets.token_bytes(_TOKEN_BYTES)
        with socket.create_server((host, 0), family=family) as listener:
            info = {
                "host": host,
                "port": listener.getsockname()[1],
                "token": token.hex(),
                "timeout_s": timeout_s,
                "chunk_bytes": chunk_bytes,
            }
            # The engines answer when they are connected.
            connecting = self._side.submit(client.init_weight_transfer_engine, info)
            try:
                self._accept(listener, token, workers, timeout_s, connecting)
                connecting.result()
            except BaseException:
                self.shutdown()
                raise

    def send_weights(self) -> None:
        assert self.source is not None
        described = self.source.metadata()
        self._client.start_weight_update()
        loading = self._side.submit(
            self._client.update_weights,
            {
                "names": [m.name for m in described],
                "dtype_names": [str(m.dtype).removeprefix("torch.") for m in described],
                "shapes": [list(m.shape) for m in described],
            },
        )
        for _, tensor in self.source:
            content = _bytes_of(tensor.detach().cpu().contiguous())
            self._send(content, loading)
        loading.result()
        self._client.finish_weight_update()

    def shutdown(self) -> None:
        for connection in self._connections:
            with suppress(OSError):  # closed already, or by the other end
                # Closing alone does not wake another thread that is sending.
                connection.shutdown(socket.SHUT_RDWR)
            connection.close()
        self._connections = []
        self._side.shutdown(wait=False)

    def _send(self, content: memoryview, loading: Future[None]) -> None:
        """Send bytes to all workers.

        Raises:
            OSError: A worker is gone.
            Exception: What the engines failed with, where that is why the connection ended.
        """
        try:
            for connection in self._connections:
                connection.sendall(content)
        except OSError as error:
            self.shutdown()  # frees the engines that wait for the rest
            failure = loading.exception()
            # An engine's OSError may only tell of this end.
            if failure is None or isinstance(failure, OSError):
                raise
            raise failure from error

    def _accept(
        self,
        listener: socket.socket,
        token: bytes,
        workers: int,
        timeout_s: float,
        connecting: Future[None],
    ) -> None:
        """Wait for all workers; others than ours do not know the token."""
        listener.settimeout(_POLL_S)
        deadline = time.monotonic() + timeout_s
        while len(self._connections) < workers:
            if connecting.done():
                connecting.result()  # an engine failed before it could connect
            if time.monotonic() > deadline:
                raise TimeoutError(
                    f"{len(self._connections)} of {workers} processes of engines have connected "
                    f"within {timeout_s:g} s for the transfer of weights"
                )
            try:
                connection, _ = listener.accept()
            except TimeoutError:
                continue
            if _knows(token, connection):
                connection.settimeout(timeout_s)
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                self._connections.append(connection)
            else:
                connection.close()


class TcpReceiver:
    """An engine's end of the transfer, in the process that has the model."""

    def __init__(self) -> None:
        self._connection: socket.socket | None = None
        self._chunk_bytes = 0

    def connect(self, host: str, port: int, token: str, timeout_s: float, chunk_bytes: int) -> None:
        """Connect with the sender; what was connected before is closed."""
        self.close()
        self._chunk_bytes = chunk_bytes
        self._connection = socket.create_connection((host, port), timeout=timeout_s)
        self._connection.sendall(bytes.fromhex(token))

    def receive(
        self,
        names: Sequence[str],
        dtype_names: Sequence[str],
        shapes: Sequence[Sequence[int]],
        load: Callable[[list[tuple[str, torch.Tensor]]], object],
    ) -> None:
        """Read these tensors in this order, and ``load`` them by chunks.

        Raises:
            ConnectionError: The sender has gone.
        """
        assert self._connection is not None, "connect() comes first"
        chunk: list[tuple[str, torch.Tensor]] = []
        size = 0
        for name, dtype_name, shape in zip(names, dtype_names, shapes, strict=True):
            tensor = torch.empty(list(shape), dtype=getattr(torch, dtype_name))
            _read(self._connection, _bytes_of(tensor))
            chunk.append((name, tensor))
            size += tensor.nbytes
            if size >= self._chunk_bytes:
                load(chunk)
                chunk, size = [], 0
        load(chunk)

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None


def _knows(token: bytes, connection: socket.socket) -> bool:
    """True if the other end sends the token. A stranger may send nothing, or be gone."""
    connection.settimeout(_TOKEN_S)
    try:
        sent = connection.recv(_TOKEN_BYTES, socket.MSG_WAITALL)
    except OSError:
        return False
    return secrets.compare_digest(sent, token)


def _bytes_of(tensor: torch.Tensor) -> memoryview:
    """The memory of a contiguous tensor; numpy does not know bfloat16."""
    return tensor.view(-1).view(torch.uint8).numpy().data


def _read(connection: socket.socket, into: memoryview) -> None:
    while into:
        count = connection.recv_into(into)
        if not count:
            raise ConnectionError("the trainer ended the transfer of weights before its end")
        into = into[count:]
