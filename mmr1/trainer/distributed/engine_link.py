"""A rank's connection to the engines, over which it sends them weights."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from typing import Any

from mmr1.config import Config
from mmr1.rollout.transfer import ReceivingEngine, WeightSender, WeightSource
from mmr1.trainer.distributed.engine_actor import Engine
from mmr1.trainer.distributed.errors import TransferError, WorkerLostError
from mmr1.trainer.distributed.ray_calls import Actor, outcomes

_CALLS = 5  # of a transfer, one after the other: connect, start, send, load, finish
_LAST_WORDS_S = 5.0  # for a connection that an engine has left


def call_seconds(config: Config) -> float:
    """Longest time for a call of a transfer: ranks that wait for this one give up later."""
    return min(config.rollout.timeout_s, config.resources.collective_timeout_s / 2)


def call_limit(config: Config) -> str:
    """The key that sets ``call_seconds``, for messages."""
    if call_seconds(config) == config.rollout.timeout_s:
        return "rollout.timeout_s"
    return "half of resources.collective_timeout_s"


def transfer_seconds(config: Config) -> float:
    """Longest time for a transfer, after which the rank that sends is stuck itself."""
    return _CALLS * call_seconds(config) + config.resources.collective_timeout_s


class EngineLink:
    """Sends weights to engines by vLLM's transfer, over NCCL, or over IPC to engines on the ranks'
    own GPUs; connects at the first transfer and after an engine was replaced.

    Args:
        host: Address of this machine that the engines reach.
        rank: Rank of this process.
    """

    def __init__(self, config: Config, host: str, rank: int) -> None:
        self._host = host
        self._rank = rank
        self._same_gpu = config.rollout.colocated
        self._workers = config.rollout.gpus_per_engine
        self._timeout_s, self._limit = call_seconds(config), call_limit(config)
        self._engines: list[Actor[Engine]] = []
        self._client: EngineClient | None = None
        self._sender: WeightSender | None = None

    @property
    def sends(self) -> bool:
        """True if this rank sends: the first one, or every rank to an engine on its own GPU."""
        return self._rank == 0 or self._same_gpu

    def send(self, source: WeightSource, engines: Sequence[Actor[Engine]], version: int) -> None:
        """Send the weights of the source to these engines, and wait until they sample with them.

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
            if self._same_gpu:  # the other ranks are in a call that waits for this one
                raise WorkerLostError(
                    f"{what}; --resume continues from the last checkpoint"
                ) from error
            raise TransferError(what) from error

    def close(self) -> None:
        if self._sender is not None:
            self._sender.shutdown()
        self._sender = None

    def _connect(self, source: WeightSource, engines: Sequence[Actor[Engine]]) -> None:
        self.close()
        self._engines = list(engines)
        client = self._client = EngineClient(engines, self._workers, self._timeout_s, self._limit)
        sender = self._sender = connected(lambda: self._sender_for(client, source), client)
        client.give_up = lambda error: sender.shutdown()

    def _sender_for(self, client: EngineClient, source: WeightSource) -> WeightSender:
        from mmr1.rollout.vllm_transfer import ipc_sender, nccl_sender

        if self._same_gpu:
            return ipc_sender(client, source, self._rank)
        return nccl_sender(client, source, self._host, self._workers * len(self._engines))


class EngineClient:
    """Calls all engines at once; a ``SyncClient``.

    Args:
        engines: All of them.
        workers: Processes of each that have a part of the model.
        timeout_s: Longest time that a call may take.
        limit: Source of the time limit, in words.

    Attributes:
        version: Version of the weights that are sent.
        give_up: Called with its error where a call fails: ends the sender of this client, or the
            waiting until there is one, and so frees whoever waits for its part of the transfer.
    """

    def __init__(
        self,
        engines: Sequence[Actor[Engine]],
        workers: int,
        timeout_s: float,
        limit: str,
    ) -> None:
        self.version = 0
        self.give_up: Callable[[BaseException], object] = lambda error: None
        self._engines = engines
        self._workers = workers
        self.timeout_s, self.limit = timeout_s, limit

    def init_weight_transfer_engine(self, init_info: dict[str, Any]) -> None:
        """Connect all engines, whose workers have consecutive numbers."""
        infos = [dict(init_info) for _ in self._engines]
        if "rank_offset" in init_info:
            for i, info in enumerate(infos):
                info["rank_offset"] += i * self._workers
        self._call(ReceivingEngine.init_weight_transfer_engine, [(info,) for info in infos])

    def start_weight_update(self) -> None:
        self._call(ReceivingEngine.start_weight_update, [()] * len(self._engines))

    def update_weights(self, update_info: Any) -> None:
        self._call(ReceivingEngine.update_weights, [(update_info,)] * len(self._engines))

    def finish_weight_update(self, weight_version: str | None = None) -> None:
        versions = [(self.version,)] * len(self._engines)
        self._call(ReceivingEngine.finish_weight_update, versions)

    def _call(self, method: Callable[..., None], arguments: Sequence[tuple[Any, ...]]) -> None:
        each = zip(self._engines, arguments, strict=True)
        calls = {i: engine.start(Engine.call, method, *own) for i, (engine, own) in enumerate(each)}
        try:
            _, lost = outcomes(calls, self.timeout_s, wait_for_all=False, limit=self.limit)
            for i, why in lost.items():
                raise TransferError(f"rollout engine {i} was lost in {method.__name__} ({why})")
        except Exception as error:
            self.give_up(error)
            raise


def connected(connect: Callable[[], WeightSender], client: EngineClient) -> WeightSender:
    """The sender that ``connect`` gives, unless an engine fails meanwhile or it takes too long.

    NCCL waits for an engine that is gone, and nothing ends that: it is then left in a thread.

    Raises:
        TransferError: If no connection is made.
    """
    made: Future[Any] = Future()
    failed: Future[Any] = Future()

    def give_up(error: BaseException) -> None:
        if not failed.done():
            failed.set_result(error)

    def run() -> None:
        try:
            made.set_result(connect())
        except BaseException as error:
            made.set_exception(error)

    client.give_up = give_up
    threading.Thread(target=run, name="connect", daemon=True).start()
    wait([made, failed], client.timeout_s + _LAST_WORDS_S, FIRST_COMPLETED)
    if failed.done():
        wait([made], _LAST_WORDS_S)  # a connection that can, ends and says why
    if made.done():
        sender: WeightSender = made.result()
        return sender
    made.add_done_callback(_shut_down)
    late = f"it took longer than {client.timeout_s:g} s, which is {client.limit}"
    why = failed.result() if failed.done() else late
    raise TransferError(f"rank 0 and the engines did not connect: {why}")


def _shut_down(late: Future[Any]) -> None:
    if late.exception() is None:
        late.result().shutdown()
