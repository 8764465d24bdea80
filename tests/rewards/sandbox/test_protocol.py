"""What a worker that was taken over can send: it is killed, and never paid for."""

from __future__ import annotations

import select
from collections.abc import Iterator

import pytest

from mmr1.rewards import Job
from mmr1.rewards.sandbox.pool import Pool
from mmr1.types import Status

NOTHING = Job("mmr1.rewards.sandbox.pool:do_nothing", ())
OK = '[[1.0, "ok", null, {}]]'


@pytest.fixture(scope="module")
def pool() -> Iterator[Pool]:
    with Pool(1, timeout_s=5.0, warm=NOTHING) as shared:
        shared.start()
        yield shared


def job(name: str, *args: object) -> Job:
    return Job(f"tests.rewards.sandbox.hostile:{name}", args, cached=False)


def in_order(pool: Pool) -> bool:
    """The worker's verdicts are those of the jobs that they are of."""
    values = [reward.value for (reward,) in pool.run([job("echo", float(n)) for n in range(5)])]
    return values == [0.0, 1.0, 2.0, 3.0, 4.0]


@pytest.mark.parametrize(
    "attempt",
    [
        job("forge", b"\x80\x04N."),  # a pickle
        job("forge", OK),
        job("forge", f"[1, {OK}]"),
        job("forge", f"[1, {OK}]", f"[2, {OK}]"),
        job("forge", "null"),
        job("forge", "[" * 100_000),
        job("forge", "[]", "[]"),
        job("claim_a_gigabyte"),
        *(
            job("forge_for_this_job", rows)
            for rows in (
                "null",
                "[]",
                f"[{OK[1:-1]}, {OK[1:-1]}]",
                '[[NaN, "ok", null, {}]]',
                '[[Infinity, "ok", null, {}]]',
                '[[1e999, "ok", null, {}]]',
                f'[[1{"0" * 400}, "ok", null, {{}}]]',
                '[["1.0", "ok", null, {}]]',
                '[[true, "ok", null, {}]]',
                '[[null, "ok", null, {}]]',
                '[[1.0, "error", null, {}]]',
                '[[1.0, "splendid", null, {}]]',
                '[[1.0, "ok", null, []]]',
                '[[1.0, "ok", null, {"part": NaN}]]',
                '[[1.0, "ok", 7, {}]]',
                '[[1.0, "ok"]]',
            )
        ),
    ],
    ids=lambda attempt: str(attempt.args)[:40],
)
def test_a_forged_answer_is_an_error_and_the_worker_is_replaced(pool: Pool, attempt: Job) -> None:
    before = pool.pids
    ((reward,),) = pool.run([attempt])
    assert (reward.value, reward.status) == (None, Status.ERROR)
    assert "sent" in (reward.error or "")
    assert pool.pids != before
    assert in_order(pool)


def test_a_frame_ahead_of_the_next_job_is_not_its_answer(pool: Pool) -> None:
    """A thread answers for a job that is not its own: its 1.0 is never taken."""
    first, second = pool.run([job("forge_later"), job("slow_echo", 3.0, 5.0)])
    assert first[0].value == 0.0
    assert second[0].value in (None, 5.0)  # 5.0 where the frame came before the job was sent
    assert in_order(pool)


def test_an_idle_worker_that_speaks_is_replaced(pool: Pool) -> None:
    assert pool.run([job("forge_later")])[0][0].value == 0.0
    before = pool.pids
    (worker,) = pool._state.workers
    assert select.select([worker.channel], [], [], 60)[0]  # it came while nothing was asked
    assert in_order(pool)
    assert pool.pids != before
