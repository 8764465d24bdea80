"""A clock that jumps, as one that is set by the network does, changes nothing of a run."""

from __future__ import annotations

import itertools
import time

from mmr1.trainer.train import run_training
from tests.trainer.resumption import rl
from tests.trainer.same_runs import assert_same

DAY_S = 86_400


def test_a_clock_that_jumps_changes_nothing(tiny_model, digits, reward, tmp_path, monkeypatch):
    run_training(rl(tiny_model, digits, reward, tmp_path / "undisturbed", max_steps=2))
    now, jumps = time.time, itertools.cycle((0, DAY_S, -DAY_S))
    monkeypatch.setattr(time, "time", lambda: now() + next(jumps))
    run_training(rl(tiny_model, digits, reward, tmp_path / "jumping", max_steps=2))
    assert_same(tmp_path / "undisturbed", tmp_path / "jumping")
