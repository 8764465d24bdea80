from __future__ import annotations

import asyncio
import os
import resource
import signal
import socket
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from mmr1.config import ScoringConfig, read_rewards
from mmr1.lifetime import Deadline
from mmr1.rewards import Job, build_composite_reward
from mmr1.rewards.sandbox import processes
from mmr1.rewards.sandbox.pool import Pool
from mmr1.rewards.sandbox.processes import kept_zygotes
from mmr1.rewards.sandbox.walls import Limits
from mmr1.rewards.sandbox.zygote import Settings
from mmr1.types import Status
from tests.faults import faults_told
from tests.paths import REPOSITORY
from tests.rewards.helpers import item, think


def hostile(name: str, *args: object, cached: bool = False) -> Job:
    return Job(f"tests.rewards.sandbox.hostile:{name}", args, cached)


def verify(gold: str, answer: str) -> Job:
    return Job("mmr1.rewards.math.symbolic:verify", (gold, answer))


NOTHING = Job("mmr1.rewards.sandbox.pool:do_nothing", ())
GOOD = verify(r"\sqrt{12}", r"2\sqrt{3}")

# Everything that is known to hang a verifier, or to eat its memory.
HANGS = {
    "tower": r"9^{9^{9^9}}",
    "factorial": "99999999!",
    "binomial": r"\binom{10^9}{5\cdot10^8}",
    "power": r"2^{3\cdot10^9}",
    "logarithm": r"\log_2(2^{2^{40}})",
    "sine": r"\sin(10^{10^6})",
    "nested fractions": r"\frac{1}{1+" * 30 + "x" + "}" * 30,
    "open brackets": r"\[ x " * 900,
    "determinant": r"\det\begin{pmatrix}"
    + r"\\".join("&".join(f"x_{{{r * 12 + c}}}" for c in range(12)) for r in range(12))
    + r"\end{pmatrix}",
}


@pytest.fixture
def alone(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> dict[str, str]:
    """An environment with which a pool has a zygote of its own, which ends with the pool."""
    monkeypatch.setattr(processes, "_keepers", [])
    return {**os.environ, "LANGUAGE": request.node.name}


@pytest.fixture(scope="module")
def pool() -> Iterator[Pool]:
    with Pool(2, timeout_s=1.0) as shared:
        shared.start()
        yield shared


def whole(pool: Pool) -> bool:
    """Both workers are there and give right verdicts."""
    jobs = [verify(rf"\sqrt{{{n * n * 3}}}", rf"{n}\sqrt{{3}}") for n in range(2, 8)]
    jobs = [replace(job, cached=False) for job in jobs]  # earlier verdicts prove nothing
    alive = all(psutil.pid_exists(pid) for pid in pool.pids)
    return alive and all(rewards[0].value == 1.0 for rewards in pool.run(jobs))


def wait_until_gone(pool: Pool, *places: int) -> None:
    """Wait until the pool can see that these workers have ended."""
    while not all(pool._state.workers[place].disturbed for place in places):
        time.sleep(0.01)


@pytest.mark.parametrize("name", HANGS)
def test_what_hangs_a_verifier_ends_in_time_and_harms_no_other(pool: Pool, name: str) -> None:
    bad, good = pool.run([verify(r"\sqrt{7}", HANGS[name]), GOOD])
    ended = {Status.TIMEOUT, Status.OK, Status.UNREAD, Status.ERROR, Status.KILLED}
    assert bad[0].status in ended
    assert bad[0].value in (None, 0.0)
    assert good[0].value == 1.0
    assert whole(pool)


def test_a_set_of_2000_elements_on_both_sides(pool: Pool) -> None:
    gold = r"\{" + ",".join(rf"x_{{{n}}}" for n in range(400)) + r"\}"
    answer = r"\{" + ",".join(rf"x_{{{n + 1}}}" for n in range(400)) + r"\}"
    bad, good = pool.run([verify(gold, answer), GOOD])
    assert bad[0].value != 1.0
    assert good[0].value == 1.0


@pytest.mark.parametrize(
    "attempt",
    [
        hostile("write_file", "/tmp/mmr1-escaped"),
        hostile("delete_file", __file__),
        hostile("fork"),
        hostile("run_program"),
        hostile("kill_parent"),
        hostile("allocate", 50),
        hostile("allocate", 2),
        hostile("exit_process"),
        hostile("segfault"),
        hostile("many_files"),
        hostile("lambdify"),
        hostile("raise_limits"),
    ],
    ids=lambda job: f"{job.target.partition(':')[2]}{list(job.args) or ''}",
)
def test_an_attempt_is_contained_and_reported(pool: Pool, attempt: Job) -> None:
    bad, good = pool.run([attempt, GOOD])
    assert bad[0].status in (Status.ERROR, Status.KILLED)
    assert bad[0].value is None
    assert bad[0].error
    assert good[0].value == 1.0
    assert not Path("/tmp/mmr1-escaped").exists()
    assert Path(__file__).exists()
    assert whole(pool)


def test_no_network(pool: Pool) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        ((reward,),) = pool.run([hostile("open_socket", server.getsockname()[1])])
    assert reward.status is Status.ERROR


@pytest.mark.parametrize("name", ["hang", "hang_in_c"])
def test_a_worker_that_does_not_answer_is_killed(name: str) -> None:
    with Pool(2, deadline=Deadline(wall_s=20.0, cpu_s=0.5)) as own:
        own.start()
        before = set(own.pids)
        bad, good = own.run([hostile(name), GOOD])
        limit = "20 s" if name == "hang_in_c" else "0.5 s of CPU time"
        assert (bad[0].status, bad[0].error) == (Status.TIMEOUT, f"no verdict in {limit}")
        assert good[0].value == 1.0
        assert whole(own)
        assert not any(psutil.pid_exists(pid) for pid in before - set(own.pids))


def test_64_items_of_which_8_hang(pool: Pool) -> None:
    """Every good verdict, and no orphan."""
    jobs = [verify(rf"\sqrt{{{n * n * 2}}}", rf"{n}\sqrt{{2}}") for n in range(2, 58)]
    for n in range(8):
        jobs.insert(n * 7, verify(rf"\sqrt{{{n + 60}}}", r"9^{9^{9^9}}"))
    before = set(pool.pids)
    results = [rewards[0] for rewards in pool.run(jobs)]
    assert sum(r.value == 1.0 for r in results) == 56
    assert sum(r.status is Status.TIMEOUT for r in results) == 8
    assert whole(pool)
    assert not any(psutil.pid_exists(pid) for pid in before - set(pool.pids))


def test_equal_jobs_run_once_and_time_outs_are_remembered(pool: Pool) -> None:
    slow = verify(r"\sqrt{11}", r"9^{9^{9^9}}")
    before = set(pool.pids)
    first = pool.run([slow] * 20)
    again = pool.run([slow] * 20)
    assert {rewards[0].status for rewards in first + again} == {Status.TIMEOUT}
    assert len(before - set(pool.pids)) == 1  # one call of forty was made, and killed


def test_the_cache_is_bounded() -> None:
    with Pool(1, timeout_s=5.0, cache_size=3) as small:
        jobs = [hostile("echo", float(n), cached=True) for n in range(10)]
        values = [rewards[0].value for rewards in small.run(jobs)]
        assert values == [float(n) for n in range(10)]
        assert len(small._cache) == 3


def test_the_result_of_a_killed_worker_is_not_remembered() -> None:
    with Pool(1, warm=NOTHING) as own:
        job = hostile("exit_process", cached=True)
        assert own.run([job])[0][0].status is Status.KILLED
        assert not own._cache


def test_a_pool_has_a_worker() -> None:
    with pytest.raises(ValueError, match="at least 1 worker, not 0"):
        Pool(0)


def test_many_jobs_keep_their_order(pool: Pool) -> None:
    jobs = [hostile("echo", float(n % 7), cached=n % 2 == 0) for n in range(500)]
    assert [rewards[0].value for rewards in pool.run(jobs)] == [float(n % 7) for n in range(500)]


def test_a_killed_worker_and_a_killed_zygote_are_replaced(alone: dict[str, str]) -> None:
    with Pool(2, timeout_s=2.0, environment=alone) as own:
        own.start()
        os.kill(own.pids[0], signal.SIGKILL)
        wait_until_gone(own, 0)  # a job handed to a dying worker is reported as killed
        with faults_told() as told:
            assert whole(own)
        assert told.counts() == {"verifier/replaced": 1}
        zygote = psutil.Process(own.pids[0]).parent()
        assert zygote is not None
        zygote.kill()
        zygote.wait(5)
        wait_until_gone(own, 0, 1)
        assert whole(own)


def test_a_late_answer_of_the_zygote_is_no_answer_to_the_next_request(
    alone: dict[str, str],
) -> None:
    """It stood still, and continues when the pool has given up on what it had asked."""
    double = Job("operator:mul", (2, 21), cached=False)
    with Pool(2, warm=NOTHING, environment=alone) as own:
        own.start()
        line, zygote = own._state._line, psutil.Process(zygote_of(own))
        assert line is not None
        line.settimeout(0.5)
        os.kill(own.pids[0], signal.SIGKILL)
        wait_until_gone(own, 0)
        zygote.suspend()
        resume = threading.Timer(0.75, zygote.resume)
        resume.start()
        answers = [*own.values([double] * 2), *own.values([double] * 4)]
        resume.join()
        # The other worker went with the zygote, which may cost the job that it had.
        assert [answer.error for answer in answers[2:]] == [None] * 4
        assert answers[0].value == 42


@pytest.mark.parametrize("once", [True, False])
def test_where_no_process_can_be_started_the_answer_is_kept_and_the_next_jobs_fail(
    once: bool,
) -> None:
    """No descriptor is left for the next worker: what came before is not lost."""
    double = Job("operator:mul", (2, 21), cached=False)
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    with Pool(1, once=once) as pool:
        pool.start()
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (3, limits[1]))
            first = pool.values([double])
            if not once:
                os.kill(pool.pids[0], signal.SIGKILL)
            failed = pool.values([double, double])
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, limits)
        again = pool.values([double])
    assert (first[0].value, first[0].error) == (42, None)
    assert failed[-1].status == Status.KILLED
    assert "no verifier process can be started: " in str(failed[-1].error)
    assert (again[0].value, again[0].error) == (42, None)


def test_a_worker_that_cannot_be_replaced_costs_the_others_nothing() -> None:
    """No descriptor is left for the next one; the other continues with what it has at hand."""
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    double = Job("operator:mul", (2, 21), cached=False)
    with Pool(2, warm=NOTHING) as pool:
        pool.start()
        killed, other = pool.pids
        os.kill(killed, signal.SIGKILL)
        wait_until_gone(pool, 0)
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (3, limits[1]))
            answers = pool.values([double, double])
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, limits)
        assert sorted(answer.status for answer in answers) == [Status.KILLED, Status.OK]
        assert pool.pids[1] == other
        assert [answer.value for answer in pool.values([double, double])] == [42, 42]
        assert pool.pids[1] == other


def zygote_of(pool: Pool) -> int:
    (zygote,) = {psutil.Process(pid).ppid() for pid in pool.pids}
    return zygote


def test_pools_that_warm_up_alike_share_a_zygote_and_nothing_else() -> None:
    small = Limits(open_files=0)
    with Pool(1, warm=NOTHING) as first, Pool(2, warm=NOTHING, limits=small) as second:
        first.start()
        second.start()
        assert zygote_of(first) == zygote_of(second)
        read = hostile("read_file", os.__file__)
        assert first.run([read])[0][0].value == 1.0
        assert second.run([read])[0][0].status is Status.ERROR
        gone = [psutil.Process(pid) for pid in second.pids]
        second.close()
        assert not psutil.wait_procs(gone, timeout=5)[1]
        assert first.values([Job("operator:mul", (2, 21))])[0].value == 42


def test_a_zygote_serves_more_pools_than_select_has_room_for(alone: dict[str, str]) -> None:
    """select(2) takes no descriptor beyond 1023."""
    if resource.getrlimit(resource.RLIMIT_NOFILE)[0] < 4096:
        pytest.skip("needs descriptors")
    with Pool(1, warm=NOTHING, environment=alone) as pool, ExitStack() as others:
        pool.start()
        assert pool._state._zygote is not None
        settings = Settings(Limits(), [], allow_weak=False, lambdify=False, walls=True)
        for _ in range(1100):
            others.enter_context(pool._state._zygote.connect(settings))
        with Pool(1, warm=NOTHING, environment=alone) as last:
            last.start()
            assert zygote_of(last) == zygote_of(pool)


def test_the_workers_of_a_pool_that_nobody_holds_end() -> None:
    with Pool(1, warm=NOTHING) as first:
        first.start()
        dropped = Pool(2, warm=NOTHING)
        dropped.start()
        gone = [psutil.Process(pid) for pid in dropped.pids]
        del dropped
        assert not psutil.wait_procs(gone, timeout=5)[1]


def test_a_zygote_is_kept_for_the_pools_of_a_block(alone: dict[str, str]) -> None:
    def started() -> psutil.Process:
        with Pool(1, warm=NOTHING, environment=alone) as pool:
            pool.start()
            return psutil.Process(zygote_of(pool))

    with kept_zygotes():
        zygote = started()
        assert started() == zygote
    assert not psutil.wait_procs([zygote], timeout=5)[1]
    assert started() != zygote


def test_closing_leaves_no_process(alone: dict[str, str]) -> None:
    own = Pool(2, timeout_s=2.0, environment=alone)
    own.start()
    processes = [psutil.Process(pid) for pid in own.pids]
    processes.append(processes[0].parent() or processes[0])
    own.close()
    own.close()
    _, alive = psutil.wait_procs(processes, timeout=5)
    assert not alive


@pytest.mark.parametrize("ending", ["os._exit(3)", "os.kill(os.getpid(), 9)", "raise SystemExit"])
def test_the_death_of_the_owner_ends_the_workers(ending: str) -> None:
    program = f"""
        import os, psutil
        from mmr1.rewards.sandbox.pool import Pool
        pool = Pool(2)
        pool.start()
        print(*pool.pids, psutil.Process(pool.pids[0]).ppid(), flush=True)
        {ending}
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program)],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    pids = [int(word) for word in done.stdout.split()]
    assert len(pids) == 3
    deadline = time.monotonic() + 5
    while any(psutil.pid_exists(pid) for pid in pids) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not any(psutil.pid_exists(pid) for pid in pids)


def test_workers_are_light() -> None:
    """Nothing heavy is imported, and 1 GiB of address space is plenty."""
    with Pool(1) as own:
        assert own.run([GOOD])[0][0].value == 1.0
        status = Path(f"/proc/{own.pids[0]}/status").read_text()
        maps = Path(f"/proc/{own.pids[0]}/maps").read_text()
    size_kib = int(status.split("VmSize:")[1].split()[0])
    assert size_kib < 300 * 1024
    assert not any(name in maps for name in ("libtorch", "numpy", "scipy", "gmpy2"))
    assert "NoNewPrivs:\t1" in status
    assert "Seccomp:\t2" in status


# --- the same verdicts from wherever they are asked for ----------------------------------------

ITEMS = [
    item(think(r"2\sqrt{3}"), r"\sqrt{12}"),
    item(think("5"), "4"),
    item(think(r"9^{9^{9^9}}"), r"\sqrt{5}"),
    item("none", "4"),
    item(think("x"), r"\frac{"),
]
CONFIG = read_rewards({"math": {}}), ScoringConfig(timeout_s=1.0)
EXPECTED = [
    (1.0, Status.OK),
    (0.0, Status.OK),
    (None, Status.TIMEOUT),
    (0.0, Status.NO_ANSWER),
    (None, Status.BAD_GOLD),
]


def verdicts() -> list[tuple[float | None, Status]]:
    with build_composite_reward(*CONFIG) as scorer:
        return [(reward.value, reward.status) for reward in scorer.score(ITEMS)]


def test_from_the_main_thread() -> None:
    assert verdicts() == EXPECTED


def test_from_another_thread() -> None:
    with ThreadPoolExecutor(1) as threads:
        assert threads.submit(verdicts).result() == EXPECTED


def test_from_an_asyncio_loop() -> None:
    async def ask() -> list[tuple[float | None, Status]]:
        return verdicts()

    assert asyncio.run(ask()) == EXPECTED


def test_the_thread_that_made_the_pool_may_end() -> None:
    made: list[Pool] = []

    def make() -> None:
        made.append(Pool(1))
        made[0].start()

    thread = threading.Thread(target=make)
    thread.start()
    thread.join()
    time.sleep(1.2)  # longer than the zygote's look at its parent
    with made[0] as own:
        assert own.run([GOOD])[0][0].value == 1.0


def test_threads_may_share_a_pool(pool: Pool) -> None:
    with ThreadPoolExecutor(4) as threads:
        jobs = [[hostile("echo", float(n)) for n in range(k, k + 20)] for k in range(8)]
        actual = list(threads.map(pool.run, jobs))
    assert [[r[0].value for r in one] for one in actual] == [
        [float(n) for n in range(k, k + 20)] for k in range(8)
    ]


@pytest.mark.slow
def test_from_ray_actors_sync_and_async(tmp_path: Path) -> None:
    ray = pytest.importorskip("ray")
    here = str(REPOSITORY)
    ray.init(
        address="local",
        num_cpus=2,
        include_dashboard=False,
        runtime_env={"env_vars": {"PYTHONPATH": here}},
        logging_level="ERROR",
    )
    try:

        @ray.remote(num_cpus=1)
        class Sync:
            def ask(self) -> list:
                return verdicts()

        @ray.remote(num_cpus=1)
        class Async:
            async def ask(self) -> list:
                return verdicts()

        sync_found, async_found = ray.get([Sync.remote().ask.remote(), Async.remote().ask.remote()])
    finally:
        ray.shutdown()
    assert sync_found == EXPECTED
    assert async_found == EXPECTED
