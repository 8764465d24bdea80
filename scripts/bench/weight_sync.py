"""CPU seconds per GiB of the way of weights on Ray: rank, object store, engine.

    python scripts/bench/weight_sync.py            # 1 GiB in bfloat16, three times

An actor publishes random weights as a rank does, another copies them into its own as an engine
does. CPU seconds are those of all processes of the cluster, this one included.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from contextlib import contextmanager

import common
import psutil
import torch

from mmr1.trainer.distributed.published_weights import PublishedWeights, publish
from mmr1.trainer.distributed.ray_connection import start_local_cluster

TENSORS = 32


class Holder:
    """Some weights in a process of their own."""

    def __init__(self, gib: float) -> None:
        elements = int(gib * 2**30 / 2 / TENSORS)
        self._weights = {
            f"w{i}": torch.full((elements,), i, dtype=torch.bfloat16) for i in range(TENSORS)
        }

    def publish(self) -> PublishedWeights:
        return publish(self._weights)

    def load(self, weights: PublishedWeights) -> None:
        for name, weight in weights.items():
            self._weights[name].copy_(weight)


def main() -> None:
    import ray

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--gib", type=float, default=1.0)
    parser.add_argument("--repeats", type=int, default=3)
    arguments = parser.parse_args()
    start_local_cluster(2)
    rank, engine = (ray.remote(Holder).remote(arguments.gib) for _ in range(2))
    ray.get([actor.__ray_ready__.remote() for actor in (rank, engine)])
    rows: list[dict[str, object]] = []
    for repeat in range(arguments.repeats):
        seconds: dict[str, float] = {}
        with counted(seconds):
            published = ray.get(rank.publish.remote())
        written = sum(seconds.values())
        with counted(seconds):
            ray.get(engine.load.remote(published))
        read = sum(seconds.values())
        rows.append(
            {
                "repeat": repeat + 1,
                "write, CPU s/GiB": written / arguments.gib,
                "read, CPU s/GiB": read / arguments.gib,
                "both": (written + read) / arguments.gib,
            }
        )
    common.table(rows)
    ray.shutdown()


@contextmanager
def counted(seconds: dict[str, float]) -> Iterator[None]:
    """Fill in the CPU seconds that each process spends in the block."""
    before = cpu_seconds()
    yield
    seconds.clear()
    after = cpu_seconds()
    seconds.update({name: after[name] - before.get(name, 0.0) for name in after})


def cpu_seconds() -> dict[str, float]:
    """Of this process and all that it started."""
    own = psutil.Process()
    times = {}
    for process in (own, *own.children(recursive=True)):
        try:
            used = process.cpu_times()
            times[f"{process.name()}-{process.pid}"] = used.user + used.system
        except psutil.Error:  # it has ended
            continue
    return times


if __name__ == "__main__":
    main()
