"""Measure the process pool that verifies answers: a batch with hanging answers, and a long run.

python scripts/bench/rewards.py hangs            64 items of which 8 hang
python scripts/bench/rewards.py steady [STEPS]   STEPS steps of 128 completions, 1% of them hang
"""

from __future__ import annotations

import sys
import time
from random import Random

import psutil

from mmr1.config import RewardFunctionConfig, RewardsConfig
from mmr1.rewards import Job, RewardItem, build_composite_reward
from mmr1.rewards.sandbox.pool import Pool
from mmr1.types import Sample, Status


def hangs(workers: int = 2, limit_s: float = 1.0) -> tuple[float, int, int]:
    """Seconds, verified answers and time-outs of 64 items of which 8 hang."""
    jobs = [_verify(rf"\sqrt{{{n * n * 2}}}", rf"{n}\sqrt{{2}}") for n in range(2, 58)]
    for n in range(8):
        jobs.insert(n * 7, _verify(rf"\sqrt{{{n + 60}}}", r"9^{9^{9^9}}"))
    with Pool(workers, limit_s) as pool:
        pool.start()
        start = time.perf_counter()
        scores = [rewards[0] for rewards in pool.run(jobs)]
        seconds = time.perf_counter() - start
        assert pool.run([_verify(r"\sqrt{12}", r"2\sqrt{3}")])[0][0].value == 1.0
    good = sum(reward.value == 1.0 for reward in scores)
    return seconds, good, sum(reward.status is Status.TIMEOUT for reward in scores)


def steady(steps: int, limit_s: float = 0.25) -> tuple[list[float], int]:
    """Resident MiB of this process and the workers over time, and the processes left at the end."""
    random, me, memory = Random(0), psutil.Process(), []
    config = RewardsConfig(
        functions={"format": RewardFunctionConfig(), "math": RewardFunctionConfig()},
        timeout_s=limit_s,
    )
    with build_composite_reward(config) as scorer:
        for step in range(steps):
            rewards = scorer.score([_item(random, step) for _ in range(128)])
            assert len(rewards) == 128
            if step % max(1, steps // 20) == 0 or step == steps - 1:
                family = [me, *me.children(recursive=True)]
                memory.append(sum(p.memory_info().rss for p in family) / 2**20)
                print(
                    f"step {step:5} {memory[-1]:8.1f} MiB, {len(family) - 1} processes", flush=True
                )
    return memory, len(me.children(recursive=True))


def _item(random: Random, step: int) -> RewardItem:
    number = random.randrange(2, 10_000)
    if random.random() < 0.01:
        gold, answer = r"\sqrt{3}", rf"9^{{9^{{9^{{{number}}}}}}}"
    elif random.random() < 0.2:
        gold, answer = rf"{number}\sqrt{{2}}", rf"\sqrt{{{2 * number * number}}}"
    else:
        gold, answer = str(number), str(number + random.randrange(2))
    sample = Sample(id=f"{step}", messages=(), answer=gold)
    return RewardItem(f"<think>so</think><answer>{answer}</answer>", sample)


def _verify(gold: str, answer: str) -> Job:
    return Job("mmr1.rewards.math.symbolic:verify", (gold, answer))


def main(arguments: list[str]) -> None:
    if arguments[:1] == ["steady"]:
        memory, left = steady(int(arguments[1]) if len(arguments) > 1 else 1000)
        settled = memory[len(memory) // 4 :]
        print(f"memory moved by {max(settled) - min(settled):.1f} MiB; {left} processes left")
    else:
        seconds, good, hung = hangs()
        print(f"{seconds:.2f} s: {good} answers verified, {hung} time-outs")


if __name__ == "__main__":
    main(sys.argv[1:])
