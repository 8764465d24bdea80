"""Runs that are started again, on what is left."""

from __future__ import annotations

from pathlib import Path

import pytest

from mmr1.config import Config, ResourcesConfig
from mmr1.trainer.distributed.errors import HungError, WorkerLostError
from mmr1.trainer.distributed.supervise import fitted, supervised


def config(**resources: object) -> Config:
    return Config(model={"path": "a"}, resources={"ranks": 2, **resources})


def test_a_run_is_started_again_from_its_checkpoint_a_bounded_number_of_times(caplog):
    resumed: list[bool] = []

    def run(settings: Config, *, resume: bool) -> Path:
        resumed.append(resume)
        if len(resumed) < 3:
            raise (WorkerLostError, HungError)[len(resumed) - 1]("rank 1 died")
        return Path("checkpoint")

    assert supervised(run, config(max_restarts=2), resume=False) == Path("checkpoint")
    assert resumed == [False, True, True]
    assert "rank 1 died. Started again, 2 of 2 times, with 2 ranks and 1 engines" in caplog.text
    resumed.clear()
    with pytest.raises(HungError):
        supervised(run, config(max_restarts=1), resume=True)
    assert resumed == [True, True]
    resumed.clear()
    with pytest.raises(WorkerLostError):
        supervised(run, config(), resume=False)
    assert resumed == [False]


def test_another_error_ends_the_run():
    def run(settings: Config, *, resume: bool) -> Path:
        raise RuntimeError("the loss is nan")

    with pytest.raises(RuntimeError, match="the loss is nan"):
        supervised(run, config(max_restarts=5), resume=False)


@pytest.mark.parametrize(
    ("resources", "engine_size", "room", "left"),
    [
        ({"ranks": 8, "engines": 4}, 2, 16, (8, 4)),
        ({"ranks": 8, "engines": 4}, 2, 8, (4, 2)),
        ({"ranks": 8, "engines": 4}, 2, 3, (1, 1)),
        ({"ranks": 8, "engines": 4, "fsdp_size": 4}, 1, 11, (8, 3)),
        ({"ranks": 8, "engines": 4, "fsdp_size": 4}, 1, 9, (4, 3)),
        ({"ranks": 2, "engines": 6}, 1, 7, (2, 5)),
    ],
)
def test_ranks_and_engines_fit_what_is_left(resources, engine_size, room, left):
    found = fitted(ResourcesConfig(**resources), engine_size, room)
    assert (found.ranks, found.engines) == left


def test_too_little_left_is_named():
    with pytest.raises(WorkerLostError, match="4 devices left, too few for one engine of 1 and 4"):
        fitted(ResourcesConfig(ranks=8, engines=2, fsdp_size=4), 1, 4)
