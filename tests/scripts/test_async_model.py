"""``scripts/bench/async_model.py``: schedules whose times follow from their costs by hand."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from dataclasses import replace
from types import ModuleType

import pytest

from tests.paths import REPOSITORY


@pytest.fixture(scope="module")
def model() -> Iterator[ModuleType]:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(REPOSITORY / "scripts/bench"))
        yield importlib.import_module("async_model")


def test_a_step_ahead_hides_the_shorter_side(model):
    """A completion of ten seconds, and an update of ten."""
    task = model.Task(groups=1, n=1, prompt=0, lengths=lambda group: [10])
    costs = model.Costs(lambda count, cached: 1.0, lambda tokens: 0.0, load=0.0, update=10.0)
    in_turn, ahead = model.in_steps(task, costs, 0), model.in_steps(task, costs, 1)
    assert (in_turn.step_s, in_turn.trainer_idle, in_turn.engine_idle) == (20, 0.5, 0.5)
    assert (ahead.step_s, ahead.trainer_idle, ahead.engine_idle) == (10, 0, 0)
    assert (in_turn.oldest, ahead.oldest) == (0, 1)


def test_a_stream_fills_the_engine(model):
    """An update takes no time, and a step of the engine as long whatever it holds."""
    task = model.Task(groups=1, n=1, prompt=0, lengths=lambda group: [10])
    costs = model.Costs(lambda count, cached: 1.0, lambda tokens: 0.0, load=0.0, update=0.0)
    for ahead in (1, 2, 4):
        outcome = model.streaming(task, costs, ahead)
        assert outcome.step_s == pytest.approx(10 / (ahead + 1), rel=0.02)  # no whole rounds
        assert outcome.sequences == ahead + 1
        assert outcome.oldest == ahead
        assert outcome.engine_idle == pytest.approx(0, abs=0.02)


def test_what_continues_is_computed_again_and_a_window_lets_others_pass(model):
    """A second completion of each group is three times as long as the first."""
    task = model.Task(groups=2, n=1, prompt=0, lengths=lambda group: [10 + 20 * (group % 2)])
    costs = model.Costs(lambda count, cached: 1.0, lambda tokens: 0.0, load=0.0, update=1.0)
    strict, window = (model.streaming(task, costs, 1, window) for window in (0, 3))
    assert strict.recomputed > 0
    assert strict.oldest == 1
    assert window.oldest == 2
    assert window.step_s < strict.step_s
    dear = replace(costs, prefill=lambda tokens: 0.1 * tokens)
    assert model.streaming(task, dear, 1).step_s > strict.step_s


def test_the_table_fits_a_terminal(model, capsys):
    costs = model.cpu_costs((1e-3, 4e-5), (4e-3, 8e-6))
    rows = list(model.rows_of("one core each", model.CPU, costs))
    model.common.table([{key: row[key] for key in row if key != "task"} for row in rows])
    assert max(map(len, capsys.readouterr().out.splitlines())) <= 80
    shares = {row["schedule"]: row["share"] for row in rows}
    assert 1 > shares["1 ahead"] > shares["S=1"] > shares["S=2"] > shares["S=4"]
