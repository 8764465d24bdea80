"""CPU seconds per GiB of the way of weights on Ray: from a rank to engines.

    python scripts/bench/weight_sync.py               # 1 GiB in bfloat16, three times, one engine
    python scripts/bench/weight_sync.py --engines 2

A rank sends random weights over TCP as it does where there is no GPU, and engines copy them into
their own. For comparison the same weights also go through Ray's object store, 256 MiB an object.
CPU seconds are those of all processes of the cluster, this one included.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import common
import numpy as np
import psutil
import torch

from mmr1.config import Config
from mmr1.rollout.tcp_transfer import CHUNK_BYTES, ParamMeta, TcpReceiver
from mmr1.trainer.distributed.engine_link import EngineLink
from mmr1.trainer.distributed.network import node_address
from mmr1.trainer.distributed.ray_connection import start_local_cluster

TENSORS = 32


class Weights:
    """Random weights; a ``WeightSource``."""

    def __init__(self, gib: float) -> None:
        elements = int(gib * 2**30 / 2 / TENSORS)
        self.own = {
            f"w{i}": torch.full((elements,), i, dtype=torch.bfloat16) for i in range(TENSORS)
        }

    def metadata(self) -> list[ParamMeta]:
        return [ParamMeta(name, w.dtype, tuple(w.shape)) for name, w in self.own.items()]

    def __iter__(self) -> Iterator[tuple[str, torch.Tensor]]:
        return iter(self.own.items())


class Rank:
    """Sends weights."""

    def __init__(self, gib: float) -> None:
        self._weights = Weights(gib)
        self._link = EngineLink(
            Config(model={"path": "-"}, rollout={"engine": "hf"}), node_address()
        )

    def send(self, engines: Sequence[Any]) -> None:
        self._link.send(self._weights, engines, 0)

    def publish(self) -> list[Any]:
        """Put the weights into the object store."""
        import ray

        chunks: list[Any] = []
        waiting: dict[str, np.ndarray] = {}
        for name, weight in self._weights:
            waiting[name] = weight.view(torch.uint8).numpy()
            if sum(array.nbytes for array in waiting.values()) >= CHUNK_BYTES:
                chunks.append(ray.put(waiting))
                waiting = {}
        return [*chunks, ray.put(waiting)]


class Engine:
    """Receives weights."""

    def __init__(self, gib: float) -> None:
        self._own = Weights(gib).own
        self._receiver = TcpReceiver()

    def call(self, method: str, *args: Any) -> None:
        if method == "init_weight_transfer_engine":
            self._receiver.connect(**args[0])
        elif method == "update_weights":
            self._receiver.receive(**args[0], load=self._load)

    def read(self, chunks: Sequence[Any]) -> None:
        """Read the weights from the object store."""
        import ray

        for chunk in chunks:
            arrays = ray.get(chunk).items()
            self._load([(n, torch.tensor(a).view(torch.bfloat16)) for n, a in arrays])

    def _load(self, chunk: list[tuple[str, torch.Tensor]]) -> None:
        for name, tensor in chunk:
            self._own[name].copy_(tensor)


def main() -> None:
    import ray

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--gib", type=float, default=1.0)
    parser.add_argument("--engines", type=int, default=1)
    parser.add_argument("--repeats", type=int, default=3)
    arguments = parser.parse_args()
    start_local_cluster(1 + arguments.engines)
    rank = ray.remote(Rank).remote(arguments.gib)
    engines = [ray.remote(Engine).remote(arguments.gib) for _ in range(arguments.engines)]
    ray.get([actor.__ray_ready__.remote() for actor in (rank, *engines)])

    def through_the_store() -> None:
        chunks = ray.get(rank.publish.remote())
        ray.get([engine.read.remote(chunks) for engine in engines])

    ways: dict[str, Callable[[], object]] = {
        "sent": lambda: ray.get(rank.send.remote(engines)),
        "object store": through_the_store,
    }
    rows: list[dict[str, object]] = []
    for repeat in range(arguments.repeats):
        spent = {way: cpu_seconds_of(run) / arguments.gib for way, run in ways.items()}
        rows.append({"repeat": repeat + 1, **{f"{w}, CPU s/GiB": s for w, s in spent.items()}})
    common.table(rows)
    ray.shutdown()


def cpu_seconds_of(run: Callable[[], object]) -> float:
    """CPU seconds of this process and its children while ``run`` is called."""
    before = _cpu_seconds()
    run()
    after = _cpu_seconds()
    return sum(seconds - before.get(process, 0.0) for process, seconds in after.items())


def _cpu_seconds() -> dict[int, float]:
    own = psutil.Process()
    times = {}
    for process in (own, *own.children(recursive=True)):
        try:
            used = process.cpu_times()
            times[process.pid] = used.user + used.system
        except psutil.Error:  # it has ended
            continue
    return times


if __name__ == "__main__":
    main()
