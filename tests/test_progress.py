"""Long waits are said once, and again while they last; short ones are not."""

from __future__ import annotations

import threading

import pytest

from mmr1 import progress


@pytest.fixture
def clock(monkeypatch):
    """A clock that tests move; ``wait`` returns at once and lets the test's script continue."""
    now = [0.0]
    monkeypatch.setattr("time.monotonic", lambda: now[0])
    monkeypatch.setattr(progress, "_longest", {})
    return now


class Ticks(threading.Event):
    """Each wait moves the clock to the next time; ended after the last."""

    def __init__(self, clock: list[float], times: list[float]) -> None:
        super().__init__()
        self._clock, self._times = clock, iter(times)

    def wait(self, timeout: float | None = None) -> bool:
        at = next(self._times, None)
        if at is not None:
            self._clock[0] = at
        return at is None


def reports(clock, capsys, times, what="reading the data", **options) -> list[str]:
    with progress.report_activity(what, **options):
        progress._report_waits(Ticks(clock, times))
    return capsys.readouterr().err.splitlines()


def test_a_wait_is_told_at_growing_intervals(clock, capsys):
    seconds = [float(s) for s in range(0, 200)]
    assert reports(clock, capsys, seconds) == [
        "reading the data ...",
        *(f"reading the data, {s} s so far" for s in (30, 60, 120)),
    ]


def test_a_phase_is_told_when_it_takes_three_times_as_long_as_ever(clock, capsys):
    with progress.report_activity("rollout", "step 1", progress.LONG_S):
        clock[0] = 40.0
    times = [40.0 + s for s in range(0, 200)]
    lines = reports(clock, capsys, times, "rollout", label="step 2", report_after_s=progress.LONG_S)
    assert lines == ["step 2: rollout, 120 s so far"]


def test_short_work_is_not_told(clock, capsys):
    assert reports(clock, capsys, [0.5, 1.0, 1.9]) == []


def test_the_thread_ends_with_its_block():
    with progress.reporting_waits():
        assert any(thread.name == "waits" for thread in threading.enumerate())
    assert not any(thread.name == "waits" for thread in threading.enumerate())
    assert progress.oldest_activity() is None


def test_the_version(mmr1):
    assert mmr1("--version")[:2] == (0, "mmr1 0.1.0\n")
