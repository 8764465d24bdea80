"""Ranks as actors build them, without Ray: what they draw at random, and how long they wait."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.multiprocessing.spawn import spawn

from mmr1.config import Config
from mmr1.trainer.distributed.rank_actor import PartMethod, Rank

RANKS = 2


class Drawn:
    """What a rank builds: it draws numbers as dropout does."""

    def __init__(self, process_group: Any) -> None:
        self.process_group = process_group

    def draw(self) -> list[float]:
        return torch.rand(4).tolist()

    def meet_in_context(self) -> None:
        self.process_group.context.gather(torch.zeros(1))()

    def meet_in_mesh(self) -> None:
        """Of the ranks that share a copy of the model."""
        dist.all_reduce(torch.zeros(1), group=self.group)


def build(config: Config, family: Any, media: Any, process_group: Any, load: Any) -> Drawn:
    drawn = Drawn(process_group)
    drawn.group = load.keywords["mesh"].get_all_groups()[0]
    return drawn


def of_built(method: Callable[..., Any]) -> PartMethod:
    return PartMethod(lambda built: built, method)


def _rank(number: int, config: Config, address: str, out: Path) -> None:
    torch.set_num_threads(1)
    rank = Rank(config, RANKS, number, build)
    if number == 0:
        host, _, port = address.rpartition(":")
        rank._listener = socket.create_server((host, int(port)))
    rank.build(address, {})
    (out / f"{number}.json").write_text(json.dumps(rank.call(of_built(Drawn.draw))))
    for method in (Drawn.meet_in_context, Drawn.meet_in_mesh):
        name = method.__name__
        late, mine = out / name, out / f"{name} {number}"
        dist.barrier()
        if number:
            deadline = time.monotonic() + 60
            while not late.exists() and time.monotonic() < deadline:
                time.sleep(0.1)
        else:
            try:
                rank.call(of_built(method))
            except RuntimeError as error:
                mine.write_text(type(error).__name__)
            late.touch()
    dist.destroy_process_group()


@pytest.fixture(scope="module")
def folder(tiny_model, tmp_path_factory) -> Path:
    out = tmp_path_factory.mktemp("ranks")
    with socket.create_server(("127.0.0.1", 0)) as listener:
        address = f"127.0.0.1:{listener.getsockname()[1]}"
    config = Config(
        model={"path": str(tiny_model)},
        trainer={"output_dir": str(out)},
        resources={
            "ranks": RANKS,
            "context_parallel_size": 2,
            "fsdp_size": 1,
            "collective_timeout_s": 5,
        },
    )
    spawn(_rank, (config, address, out), nprocs=RANKS)
    return out


@pytest.mark.slow
def test_each_rank_draws_dropout_of_its_own(folder):
    first, second = (json.loads((folder / f"{n}.json").read_text()) for n in range(RANKS))
    assert first != second
    assert first == torch.rand(4, generator=torch.Generator().manual_seed(0)).tolist()


@pytest.mark.parametrize("method", ["meet_in_context", "meet_in_mesh"])
def test_ranks_of_a_context_or_a_copy_do_not_wait_longer_than_others(folder, method):
    """Torch would let them wait for half an hour."""
    assert (folder / f"{method} 0").read_text() == "HungError"
