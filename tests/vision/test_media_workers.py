"""How many processes prepare media on a machine, whatever runs there."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from itertools import product
from pathlib import Path

import pytest

from mmr1.config import Config
from mmr1.machine import cores
from mmr1.types import MediaRef
from mmr1.vision.build import Preparers, media_workers
from tests.faults import faults_told


def config(workers: int | None, ranks: int, engines: int) -> Config:
    tree = {
        "model": {"path": "model"},
        "data": {"num_workers": workers},
        "resources": {"ranks": ranks, "engines": engines},
    }
    return Config.model_validate(tree)


def of_a_machine(workers: int, ranks: int, engines: int) -> int:
    """Those of the driver and of ranks and engines beside it."""
    run = config(workers, ranks, engines)
    of_ranks, of_engines = ranks * media_workers(run, ranks), engines * media_workers(run, engines)
    return media_workers(run) + of_ranks + of_engines


@pytest.mark.parametrize("workers", [1, 4, 12, 24, 48])
def test_a_machine_has_no_more_than_it_may_have_or_one_for_each_process(workers):
    for ranks, engines in product((1, 2, 5, 7, 8), (2, 3, 8)):
        total = of_a_machine(workers, ranks, engines)
        assert total >= 1 + ranks + engines
        beyond = sum(max(0, count - workers // 3) for count in (1, ranks, engines))
        assert total <= workers + beyond, (ranks, engines)


def test_each_kind_has_a_third():
    run = config(24, 4, 2)
    assert [media_workers(run), media_workers(run, 4), media_workers(run, 2)] == [8, 2, 4]


def test_one_process_has_them_all_and_none_stays_none():
    assert media_workers(config(24, 1, 1)) == 24
    assert media_workers(config(None, 1, 1)) == cores() // 4
    assert of_a_machine(0, 8, 2) == 0


def preparing() -> Callable[[MediaRef], object]:
    """A medium's bytes say what happens to the process that prepares it."""

    def prepare(media: MediaRef) -> object:
        what, _, mark = media.read().decode().partition(" ")
        if what == "die":
            os.kill(os.getpid(), signal.SIGKILL)
        if what == "once" and not Path(mark).exists():
            Path(mark).touch()
            os.kill(os.getpid(), signal.SIGKILL)
        if what == "refuse":
            raise ValueError("it is refused")
        return what

    return prepare


def test_a_killed_process_is_replaced_and_its_media_are_prepared_again(tmp_path):
    workers = Preparers(preparing, 2)  # type: ignore[arg-type]
    with faults_told() as told:
        media = [f"once {tmp_path}/mark", *(f"m{number}" for number in range(6)), "die", "refuse"]
        refs = [MediaRef("image", data=content.encode()) for content in media]
        futures = [workers.submit(ref) for ref in refs]
        results = [future.exception() or future.result() for future in futures]
        assert results[:7] == ["once", *media[1:7]]
        assert isinstance(results[7], ValueError)
        assert "was killed, again when it prepared nothing else" in str(results[7])
        assert str(results[8]) == "it is refused"
        assert workers.submit(refs[1]).result() == "m0"
    assert told.counts()["media/worker_replaced"] in (1, 2)
