"""Schedules of rollouts and updates with known costs: a model, not a measurement.

    python scripts/bench/async_model.py                     # a CPU, and 8 and 64 GPUs
    python scripts/bench/async_model.py --measure MODEL     # first measures the costs on this CPU

Engines and ranks have separate devices. Three schedules share costs and lengths: in turn
(``rollout.max_off_policy_steps=0``), whole steps ahead, and streaming (``rollout.streaming``), with
the same places and the same window as ``mmr1/trainer/stream.py``. Lengths of completions are
log-normal. For GPUs, costs are those of ``mmr1 doctor --estimate`` (``mmr1/estimate``): a decoding
step reads the weights and the keys and values of all that runs; new weights have the keys and
values of unfinished completions computed again.
"""

from __future__ import annotations

import argparse
import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from heapq import heappop, heappush
from pathlib import Path
from typing import Any

import common
import numpy as np
from matplotlib import pyplot as plt
from matplotlib.figure import Figure

from mmr1.estimate.load import Load
from mmr1.estimate.step_time import Machine, Step
from mmr1.vision.families.family import ModelShape, StackShape

STEPS, SKIPPED = 80, 20
# Published shapes of Qwen2.5-VL-7B, and its parameters and tokens.
LANGUAGE = StackShape(28, 3584, 18944, queries=3584, keys=512, heads=28)
TOWER = StackShape(32, 1280, 3420, queries=1280, keys=1280, heads=16, rows_per_token=4)
WEIGHTS, VOCABULARY = 8.29e9, 151_936
RANKS = {8: 4, 64: 31}
"""Of so many GPUs, the split with the shortest step one step ahead; the others are engines."""
REACHED = 0.35
"""Share of the arithmetic that prefill and updates reach; assumed."""


@dataclass(frozen=True, slots=True)
class Costs:
    """Seconds.

    Attributes:
        step: Of an engine's step with so many sequences and so many tokens in its cache.
        prefill: Of so many tokens.
        load: Of new weights, for each engine.
        update: Of the trainer.
    """

    step: Callable[[int, float], float]
    prefill: Callable[[float], float]
    load: float
    update: float


@dataclass(frozen=True, slots=True)
class Task:
    """A step's groups, the engines that sample them, and the lengths of a group's completions."""

    groups: int
    n: int
    prompt: int
    lengths: Callable[[int], Sequence[int]]
    engines: int = 1


def log_normal(median: float, p99: float, longest: int, n: int) -> Callable[[int], list[int]]:
    """Lengths of the completions of a group; 2.326 deviations lie below the 99th percentile."""
    sigma = math.log(p99 / median) / 2.326

    def of_group(group: int) -> list[int]:
        draws = np.random.default_rng(group).normal(math.log(median), sigma, n)
        return [max(1, int(length)) for length in np.exp(draws).clip(1, longest)]

    return of_group


class Engine:
    """An engine's clock, and what it samples.

    Attributes:
        running: A heap: of each completion the engine's step that ends it and the one that began
            it, its group, and its first version.
        ended: When, of which group, and its first version; until somebody takes them.
    """

    def __init__(self, task: Task, costs: Costs) -> None:
        self.task, self.costs = task, costs
        self.now = self.busy = 0.0
        self.running: list[tuple[int, int, int, int]] = []
        self.ended: list[tuple[float, int, int]] = []
        self.recomputed = self.sequence_steps = self.steps = 0
        self._began = 0  # the sum over what is running

    @property
    def sampled(self) -> int:
        """Tokens so far of what is running."""
        return self.steps * len(self.running) - self._began

    @property
    def cached(self) -> float:
        """Likewise, with the prompts that a group shares."""
        return len(self.running) * self.task.prompt / self.task.n + self.sampled

    def add(self, group: int, version: int, at: float) -> None:
        if not self.running:
            self.now = max(self.now, at)
        for length in self.task.lengths(group):
            heappush(self.running, (self.steps + length, self.steps, group, version))
            self._began += self.steps
        self._work(self.costs.prefill(self.task.prompt))

    def load(self, at: float, streams: bool) -> None:
        self.run_until(at)
        self.now = max(self.now, at)
        self._work(self.costs.load)
        if streams and self.running:
            self.recomputed += self.sampled
            self._work(self.costs.prefill(self.cached))

    def run_until(self, at: float) -> None:
        """Whole steps, to the first that ends at that time or later."""
        while self.running and self.now < at:
            self._steps(at)

    def run_to_next_end(self) -> None:
        while self.running and not self.ended:
            self._steps(math.inf)

    def _steps(self, until: float) -> None:
        """As many steps as nothing ends in between; fewer if the time comes."""
        count = len(self.running)
        steps = self.running[0][0] - self.steps
        seconds = self.costs.step(count, self.cached + count * steps / 2)
        if self.now + seconds * steps > until:
            steps = max(1, min(steps, math.ceil((until - self.now) / seconds)))
        self._work(seconds * steps)
        self.steps += steps
        self.sequence_steps += steps * count
        while self.running and self.running[0][0] == self.steps:
            _, began, group, version = heappop(self.running)
            self._began -= began
            self.ended.append((self.now, group, version))

    def _work(self, seconds: float) -> None:
        self.now += seconds
        self.busy += seconds


@dataclass(frozen=True, slots=True)
class Outcome:
    """Seconds per step, idle shares, and ages in steps, after a start that is left out."""

    step_s: float
    trainer_idle: float
    engine_idle: float
    sequences: float
    staleness: float
    oldest: int
    recomputed: float

    def row(self, name: str, of: Outcome) -> dict[str, Any]:
        return {
            "schedule": name,
            "s/step": self.step_s,
            "share": self.step_s / of.step_s,
            "trainer": self.trainer_idle,
            "engine": self.engine_idle,
            "seqs": round(self.sequences),
            "age": self.staleness,
            "max": self.oldest,
            "redone": round(self.recomputed),
        }


def in_steps(task: Task, costs: Costs, ahead: int) -> Outcome:
    """Whole steps: one is sampled to its end on empty engines before the next begins."""
    engines = [Engine(task, costs) for _ in range(task.engines)]
    sampled = 0.0  # when the engines were done with the step before
    learned, idle, marks = [0.0], 0.0, []
    for step in range(1, STEPS + SKIPPED + 1):
        if step == SKIPPED + 1:
            marks = [learned[-1], idle, *_totals(engines)]
        version = max(0, step - 1 - ahead)
        begin = max(sampled, learned[version])
        for engine in engines:
            engine.now = begin
            if version:
                engine.load(begin, streams=False)
        for index in range(task.groups):
            group = (step - 1) * task.groups + index
            engines[index % task.engines].add(group, version, begin)
        for engine in engines:
            engine.run_until(math.inf)
        sampled = max(engine.now for engine in engines)
        idle += max(0.0, sampled - learned[-1])
        learned.append(max(learned[-1], sampled) + costs.update)
    ages = [min(ahead, step - 1) for step in range(SKIPPED + 1, STEPS + SKIPPED + 1)]
    return _outcome(engines, learned[-1], idle, marks, ages)


def streaming(task: Task, costs: Costs, ahead: int, window: int = 0) -> Outcome:
    """As ``Stream``: ``(ahead + 1) * groups`` places, given back when the weights are loaded."""
    engines = [Engine(task, costs) for _ in range(task.engines)]
    now, idle, drawn, marks = 0.0, 0.0, 0, list[float]()
    ages: list[int] = []
    open_groups: dict[int, list[tuple[float, int]]] = {}  # what has ended of each

    def collect(engine: Engine) -> None:
        for ended, group, version in engine.ended:
            open_groups[group].append((ended, version))
        engine.ended.clear()

    def ready() -> int | None:
        oldest = next(iter(open_groups))
        for group, ended in open_groups.items():
            if group > oldest and group >= oldest + window:
                return None
            if len(ended) == task.n:
                return group
        return None

    for step in range(1, STEPS + SKIPPED + 1):
        if step == SKIPPED + 1:
            marks = [now, idle, *_totals(engines)]
            ages.clear()
        while len(open_groups) < (ahead + 1) * task.groups:
            open_groups[drawn] = []
            engines[drawn % task.engines].add(drawn, step - 1, now)
            drawn += 1
        for engine in engines:
            engine.run_until(now)
            collect(engine)
        began = now
        for _ in range(task.groups):
            while (group := ready()) is None:
                # The engine whose clock is the furthest behind is the next in which one may end.
                engine = min((e for e in engines if e.running), key=lambda e: e.now)
                engine.run_to_next_end()
                collect(engine)
            ended = open_groups.pop(group)
            now = max(now, *(at for at, _ in ended))
            ages += [step - 1 - version for _, version in ended]
        idle += now - began
        now += costs.update
        for engine in engines:
            engine.load(now, streams=True)
    bound = ahead + max(0, math.ceil((window - 1) / task.groups))
    assert max(ages) <= bound, (max(ages), bound)
    return _outcome(engines, now, idle, marks, ages)


def _totals(engines: Sequence[Engine]) -> list[float]:
    sums = [[e.busy, e.sequence_steps, e.steps, e.recomputed] for e in engines]
    return [float(total) for total in np.sum(sums, axis=0)]


def _outcome(
    engines: Sequence[Engine], now: float, idle: float, marks: list[float], ages: list[int]
) -> Outcome:
    since, idle_before, *before = marks
    seconds = now - since
    busy, sequences, steps, recomputed = np.subtract(_totals(engines), before)
    return Outcome(
        step_s=seconds / STEPS,
        trainer_idle=(idle - idle_before) / seconds,
        engine_idle=max(0.0, 1 - float(busy) / seconds / len(engines)),
        sequences=float(sequences / max(1.0, steps)),
        staleness=float(np.mean(ages)),
        oldest=max(ages),
        recomputed=float(recomputed) / STEPS,
    )


def rows_of(name: str, task: Task, costs: Costs) -> Iterator[dict[str, Any]]:
    """All schedules of a task."""
    in_turn = in_steps(task, costs, 0)
    schedules: dict[str, Outcome] = {"in turn": in_turn}
    for ahead in (1, 2):
        schedules[f"{ahead} ahead"] = in_steps(task, costs, ahead)
    for ahead in (1, 2, 4):
        schedules[f"S={ahead}"] = streaming(task, costs, ahead)
        window = int(0.3 * (ahead + 1) * task.groups)
        schedules[f"S={ahead}, window {window}"] = streaming(task, costs, ahead, window)
    for schedule, outcome in schedules.items():
        yield {"task": name, **outcome.row(schedule, in_turn)}


CPU = Task(groups=8, n=4, prompt=80, lengths=log_normal(90, 600, 600, 4))


def cpu_costs(
    of_step: tuple[float, float],
    of_prefill: tuple[float, float],
    load: float = 16e-3,
    update: float = 0.35,
) -> Costs:
    """Of a tiny model on one core."""
    return Costs(
        step=lambda count, cached: of_step[0] + of_step[1] * count,
        prefill=lambda tokens: of_prefill[0] + of_prefill[1] * tokens,
        load=load,
        update=update,
    )


def on_gpus(gpus: int) -> tuple[Task, Costs, str]:
    """R1-like lengths: median 800, 99th percentile 8,000. 16 groups of 16 completions per GPU."""
    ranks = RANKS[gpus]
    lengths = log_normal(800, 8000, 16_384, 16)
    task = Task(2 * gpus, 16, 512, lengths, engines=gpus - ranks)
    mean = int(np.mean([length for group in range(500) for length in task.lengths(group)]))
    machine = Machine()
    load = Load(task.prompt, 256, mean)
    step = Step(ModelShape(LANGUAGE, TOWER), WEIGHTS, VOCABULARY, task.groups, task.n, load)
    compute, size = machine.flops * REACHED, 2 * WEIGHTS
    reading = machine.memory_bandwidth * machine.bandwidth_reached
    cache = 2 * 2 * LANGUAGE.layers * LANGUAGE.keys
    of_token = step.prompt_flops / task.prompt
    of_rank = -(-task.groups // ranks)
    learning = of_rank * step.group_flops / compute
    # A group per micro-batch: each gathers weights twice, and sums up gradients in float32.
    moved = of_rank * (2 + 2 + 4) * WEIGHTS * (1 - 1 / ranks) / machine.link(ranks)
    copied = size / machine.host
    costs = Costs(
        step=lambda count, cached: max(
            (size + cached * cache) / reading,
            count * of_token / compute,
        ),
        prefill=lambda tokens: tokens * of_token / compute,
        load=copied + size / machine.link(gpus),
        update=max(learning, moved) + size / machine.link(ranks) + copied,
    )
    return task, costs, f"7B, {gpus} GPUs: {ranks} ranks, {gpus - ranks} engines"


def measured(model: str) -> tuple[tuple[float, float], tuple[float, float]]:
    """CPU seconds of a step and of a prefill: a part that is constant, and one per unit."""
    from vllm import SamplingParams

    from mmr1.config import Config
    from mmr1.rollout.build_vllm import build_vllm_engine

    rollout = {"max_prompt_length": 256, "max_response_length": 512}
    engine = build_vllm_engine(
        Config(model={"path": model, "dtype": "float32"}, rollout=rollout, trainer={"threads": 1})
    )
    inner = engine._llm.llm_engine
    params = SamplingParams(max_tokens=200, ignore_eos=True, logprobs=0, detokenize=False)
    steps, prefills = [], []
    for count in (1, 8, 16, 32):
        for index in range(count):
            prompt = {"prompt_token_ids": list(range(100 + index, 180 + index))}
            inner.add_request(f"{count}-{index}", prompt, params)
        for _ in range(60):
            inner.step()
        begin = time.process_time()
        for _ in range(100):
            inner.step()
        steps.append((count, (time.process_time() - begin) / 100))
        tokens = count * (80 + 160)
        inner.reset_prefix_cache(reset_running_requests=True)
        begin = time.process_time()
        inner.step()
        prefills.append((tokens, time.process_time() - begin))
        while inner.has_unfinished_requests():
            inner.step()
    return _line(steps), _line(prefills)


def _line(points: Sequence[tuple[float, float]]) -> tuple[float, float]:
    slope, constant = np.polyfit([x for x, _ in points], [y for _, y in points], 1)
    return max(0.0, float(constant)), float(slope)


def figure_of(rows: Sequence[dict[str, Any]]) -> Figure:
    """How the share of synchronous time falls with the bound."""
    figure, axes = plt.subplots(figsize=(6, 3.5))
    for task in dict.fromkeys(row["task"] for row in rows):
        own = [row for row in rows if row["task"] == task and "window" not in row["schedule"]]
        strict = [own[0], *(row for row in own if row["schedule"].startswith("S="))]
        axes.plot([r["oldest"] for r in strict], [r["share"] for r in strict], "o-", label=task)
    axes.set(xlabel="oldest weights, steps", ylabel="time, of in turn", ylim=(0, 1.05))
    axes.legend()
    return figure


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--measure", metavar="MODEL", help="folder of a small model")
    parser.add_argument("--output", type=Path, default=Path("runs/bench"))
    args = parser.parse_args()
    of_step, of_prefill = (1.03e-3, 0.038e-3), (4e-3, 7.8e-6)  # an EPYC without AMX, one thread
    if args.measure:
        of_step, of_prefill = measured(args.measure)
        print(f"step {of_step}, prefill {of_prefill}")
    tasks = [("one core each", CPU, cpu_costs(of_step, of_prefill))]
    for gpus in (8, 64):
        task, costs, name = on_gpus(gpus)
        tasks.append((name, task, costs))
    rows = []
    for name, task, costs in tasks:
        of_task = list(rows_of(name, task, costs))
        print(f"\n{name}")
        common.table([{key: row[key] for key in row if key != "task"} for row in of_task])
        rows += of_task
    print(
        "\nshare: of the time in turn; trainer, engine: idle; seqs: of an engine's step; age, max: "
        "mean\nand oldest, in steps; redone: tokens that a step's new weights compute again"
    )
    common.save(args.output, "async_model", {"rows": rows}, figure_of(rows))


if __name__ == "__main__":
    main()
