"""A rank's connection to the engines, over which it sends them weights."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from mmr1.config import Config
from mmr1.rollout.tcp_transfer import TcpSender, WeightSender, WeightSource
from mmr1.rollout.vllm import transfer_backend
from mmr1.trainer.distributed.errors import TransferError, WorkerLostError
from mmr1.trainer.distributed.ray_calls import outcomes


class EngineLink:
    """Sends weights to engines; connects when it first does, and anew when one is another.

    Args:
        host: Address of this machine that the engines reach.
        rank: That this process is.
    """

    def __init__(self, config: Config, host: str, rank: int) -> None:
        self._host = host
        self._rank = rank
        self._backend = transfer_backend(config.rollout.engine, config.resources.colocate)
        self._workers = config.rollout.tensor_parallel_size
        # Before the ranks that wait for this one give up.
        self._timeout_s = min(config.rollout.timeout_s, config.resources.collective_timeout_s / 2)
        self._engines: list[Any] = []
        self._client: EngineClient | None = None
        self._sender: WeightSender | None = None

    @property
    def sends(self) -> bool:
        """Does this rank send? All do to engines on their own GPUs, else the first."""
        return self._rank == 0 or self._backend == "ipc"

    @property
    def device(self) -> str:
        """Where weights have to be."""
        return "cpu" if self._backend == "tcp" else "cuda"

    def send(self, source: WeightSource, engines: Sequence[Any], version: int) -> None:
        """All of these engines sample with the weights of the source when this returns.

        Raises:
            TransferError: An engine is lost, or failed. None of them may be used before the next
                transfer.
            WorkerLostError: The same where each rank sends to its own GPU, which cannot be
                repeated: the ranks gather handles together, and are not at the same one any more.
        """
        try:
            if self._sender is None or self._engines != list(engines):
                self._connect(source, engines)
            assert self._client is not None
            assert self._sender is not None
            self._client.version = version
            self._sender.source = source
            self._sender.send_weights()
        except Exception as error:
            self.close()
            if getattr(source, "failure", None) is error:  # of the ranks, not of the engines
                raise
            what = f"the weights did not reach all engines: {error}"
            if self._backend == "ipc":  # the other ranks are in a call that waits for this one
                raise WorkerLostError(
                    f"{what}; --resume goes on from the last checkpoint"
                ) from error
            raise TransferError(what) from error

    def close(self) -> None:
        if self._sender is not None:
            self._sender.shutdown()
        self._sender = None

    def _connect(self, source: WeightSource, engines: Sequence[Any]) -> None:
        self.close()
        self._engines = list(engines)
        self._client = EngineClient(engines, self._workers, self._timeout_s)
        workers = self._workers * len(engines)
        if self._backend == "nccl":
            from mmr1.rollout.vllm_transfer import nccl_sender

            self._sender = nccl_sender(self._client, source, self._host, workers)
        elif self._backend == "ipc":
            from mmr1.rollout.vllm_transfer import ipc_sender

            self._sender = ipc_sender(self._client, source, self._rank)
        else:
            self._sender = TcpSender(self._client, self._host, workers, self._timeout_s)
        self._client.give_up = self._sender.shutdown


class EngineClient:
    """Calls all engines at once; a ``SyncClient``.

    Args:
        engines: Actors of ``Engine``.
        workers: Processes of each that have a part of the model.
        timeout_s: Longest time that a call may take.

    Attributes:
        version: Of the weights that are sent.
        give_up: Called where a call fails: ends the sender of this client, and so frees whoever
            waits for its part of the transfer. None while that sender connects.
    """

    def __init__(
        self,
        engines: Sequence[Any],
        workers: int,
        timeout_s: float,
    ) -> None:
        self.version = 0
        self.give_up: Callable[[], None] | None = None
        self._engines = engines
        self._workers = workers
        self._timeout_s = timeout_s

    def init_weight_transfer_engine(self, init_info: dict[str, Any]) -> None:
        """vLLM numbers the workers of one engine; those of the next come after them."""
        infos = [dict(init_info) for _ in self._engines]
        if "rank_offset" in init_info:
            for i, info in enumerate(infos):
                info["rank_offset"] += i * self._workers
        self._call("init_weight_transfer_engine", [(info,) for info in infos])

    def start_weight_update(self) -> None:
        self._call("start_weight_update", [()] * len(self._engines))

    def update_weights(self, update_info: Any) -> None:
        self._call("update_weights", [(update_info,)] * len(self._engines))

    def finish_weight_update(self, weight_version: str | None = None) -> None:
        self._call("finish_weight_update", [(self.version,)] * len(self._engines))

    def _call(self, method: str, arguments: Sequence[tuple[Any, ...]]) -> None:
        each = zip(self._engines, arguments, strict=True)
        calls = {i: engine.call.remote(method, *own) for i, (engine, own) in enumerate(each)}
        try:
            _, lost = outcomes(calls, self._timeout_s, wait_for_all=False)
            for i, why in lost.items():
                raise TransferError(f"rollout engine {i} was lost in {method} ({why})")
        except Exception:
            if self.give_up is not None:
                self.give_up()
            raise
