"""Rules are charged with CPU time, plugins with the clock on the wall."""

from __future__ import annotations

import os
import time

import pytest

from mmr1.lifetime import Deadline, Stopwatch, cpu_seconds, rule_deadline
from mmr1.rewards import Job
from mmr1.rewards.sandbox.pool import Pool
from mmr1.types import Status

NOTHING = Job("mmr1.rewards.sandbox.pool:do_nothing", ())


def job(name: str, *args: object) -> Job:
    return Job(f"tests.rewards.sandbox.hostile:{name}", args, cached=False)


def test_the_clock_of_a_process_is_its_cpu_time() -> None:
    before, own = cpu_seconds(os.getpid()), time.process_time()
    while time.process_time() < own + 0.2:
        pass
    after = cpu_seconds(os.getpid())
    assert before is not None
    assert after is not None
    assert after - before == pytest.approx(time.process_time() - own, abs=0.1)
    assert cpu_seconds(2**22 + 1) is None


def test_a_rule_is_not_charged_for_waiting() -> None:
    """A verdict that a busy machine keeps from running for longer than its deadline."""
    with Pool(1, timeout_s=0.3, warm=NOTHING) as pool:
        (slept,), (turned,) = pool.run([job("sleep", 1.0), job("use_cpu", 5.0)])
    assert slept.value == 1.0
    assert turned.status is Status.TIMEOUT
    assert turned.error == "no verdict in 0.3 s of CPU time"


def test_a_plugin_is_charged_for_waiting() -> None:
    with Pool(1, deadline=Deadline(0.3), warm=NOTHING) as pool:
        ((slept,),) = pool.run([job("sleep", 30.0)])
    assert (slept.status, slept.error) == (Status.TIMEOUT, "no verdict in 0.3 s")


def test_a_rule_that_waits_for_ever_ends_on_the_wall() -> None:
    assert rule_deadline(2.0) == Deadline(60.0, 2.0)
    assert rule_deadline(10.0) == Deadline(300.0, 10.0)
    watch = Stopwatch(Deadline(0.05, 100.0), os.getpid())
    assert watch.passed is None
    time.sleep(0.06)
    assert watch.passed == "0.05 s"
