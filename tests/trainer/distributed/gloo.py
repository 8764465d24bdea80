"""Ranks of a process group, without Ray."""

from __future__ import annotations

import socket
from typing import Any

import torch
import torch.distributed as dist
from torch.multiprocessing.spawn import spawn, start_processes

from mmr1.trainer.distributed import fsdp


def on_two_ranks(work: Any, *args: Any, shard: int | None = None) -> None:
    """``work(rank, mesh, *args)`` in two processes of a group; with ``shard=1`` each has a copy."""
    on_ranks(2, work, *args, shard=shard)


def on_ranks(count: int, work: Any, *args: Any, shard: int | None = None) -> None:
    """The same in so many processes; ``shard`` of them have a copy together."""
    listener = socket.create_server(("127.0.0.1", 0))
    port = listener.getsockname()[1]
    listener.close()
    spawn(_fork, (count, work, port, args, shard), nprocs=1)


def _fork(_: int, count: int, *args: Any) -> None:
    """In a process that has imported what the ranks need: once for all of them."""
    start_processes(_rank, (count, *args), nprocs=count, start_method="fork")


def _rank(
    rank: int, count: int, work: Any, port: int, args: tuple[Any, ...], shard: int | None
) -> None:
    torch.set_num_threads(1)
    listener = socket.create_server(("127.0.0.1", port)) if rank == 0 else None
    mesh = fsdp.join(rank, count, f"127.0.0.1:{port}", "127.0.0.1", 60, shard, listener)
    work(rank, mesh, *args)
    dist.destroy_process_group()
