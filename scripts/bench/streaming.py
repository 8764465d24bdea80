"""Wall seconds of an update in turn, one step ahead, and streaming; a core for each side.

    python scripts/bench/streaming.py                        # 30 minutes on a quiet machine
    python scripts/bench/streaming.py --minutes 5            # starts or continues, for 5 minutes
    python scripts/bench/streaming.py --steps 3 --seeds 0    # tries the program out

The trainer has the first core of this process, the engine's process the second. A tiny model names
the digit in a picture and then keeps talking, for 20 to 600 tokens with a long tail. It has learned
digits from short demonstrations, and lengths from long ones, half of which are wrong: RL has
something to undo. A KL term keeps the lengths as they are. A round has one run of each schedule,
and there is one round for each seed. Every run writes a line per step as it comes, runs that exist
under ``--output`` are not repeated, and the table is of those.

Idle shares are 1 - CPU seconds / wall seconds, of the trainer's process and of the engine's.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import multiprocessing
import os
import random
import shutil
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from statistics import fmean, median
from typing import Any

import common
import numpy as np
import psutil
from digit_runs import call, newest
from matplotlib import pyplot as plt

from datasets_prep.generators import make
from mmr1.config.file import config_from
from mmr1.data.record import read_records, write_records
from mmr1.trainer.train import training_steps
from mmr1.types import Message, Sample, TextPart
from mmr1.vision.families import tiny

STREAM = {"at_new_weights": "continue"}
ARMS: dict[str, dict[str, Any]] = {
    "in turn": {},
    "1 ahead": {"max_off_policy_steps": 1},
    "S=1": {"max_off_policy_steps": 1, "queue": STREAM},
    "S=2": {"max_off_policy_steps": 2, "queue": STREAM},
}
GROUPS, N = 8, 4
LEARNT_FROM = 600
"""Pictures with demonstrations; the others are for the runs."""
MEDIAN, SIGMA, SHORTEST, LONGEST = 90, 0.8, 20, 600
STARTING, ENDING = 5, 4
"""Steps at either end that are not timed: a stream fills itself, and runs dry."""
Line = dict[str, Any]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--steps", type=int, default=70, help="that are timed, of a run")
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    parser.add_argument("--minutes", type=float, default=60, help="no run begins that takes longer")
    parser.add_argument("--accuracy", type=float, default=0.65, help="to reach")
    parser.add_argument("--sft-steps", type=int, default=150)
    parser.add_argument("--output", type=Path, default=Path("runs/bench/streaming"))
    parser.add_argument("--run", nargs=2, metavar=("ARM", "SEED"), help="one run alone")
    args = parser.parse_args()
    if args.run:
        one_run(args.run[0], int(args.run[1]), args.steps, args.output)
    else:
        all_runs(args)


def all_runs(args: argparse.Namespace) -> None:
    until, longest = time.monotonic() + 60 * args.minutes, 0.0
    prepare(args.output, args.sft_steps)
    for seed in args.seeds:
        for arm in ARMS:
            folder = folder_of(args.output, arm, seed)
            if (folder / "done").is_file():
                continue
            began = time.monotonic()
            if began + longest > until:
                print(f"{args.minutes:g} minutes are over; run the same command to continue")
                return report(args)
            shutil.rmtree(folder, ignore_errors=True)
            again("--run", arm, seed, "--steps", args.steps, "--output", args.output)
            longest = max(longest, time.monotonic() - began)
            print(f"{arm}, seed {seed}: {time.monotonic() - began:.0f} s", flush=True)
    return report(args)


def again(*arguments: object) -> None:
    """This program in another process; ends this one where it fails."""
    finished = subprocess.run([sys.executable, __file__, *map(str, arguments)], check=False)
    if finished.returncode:
        sys.exit(finished.returncode)


def folder_of(output: Path, arm: str, seed: int) -> Path:
    return output / "runs" / f"{arm.replace(' ', '_')}-{seed}"


def start_of(output: Path) -> Path:
    return newest(output / "long")


def prepare(output: Path, steps: int) -> None:
    """Data, and a model that has seen the demonstrations; what exists is kept."""
    data = output / "data"
    if not (data / "asked.jsonl").is_file():
        make("digits", data, 0)
        samples = [s for split in ("sft", "rl") for s in read_records(data / f"{split}.jsonl")]
        draws, learnt_from = random.Random(0), samples[:LEARNT_FROM]
        write_records(data / "short.jsonl", [shown(s, int(s.answer), 0) for s in learnt_from])
        write_records(data / "long.jsonl", [long_winded(s, draws) for s in learnt_from])
        write_records(data / "asked.jsonl", samples[LEARNT_FROM:])
    if not (output / "model/config.json").is_file():
        texts = [answer(digit, 30) for digit in range(10)] + ["Which digit is this?"]
        tiny.new_model(output / "model", corpus=texts)
    demonstrate(output, "short", output / "model", steps)
    demonstrate(output, "long", newest(output / "short"), steps)


def demonstrate(output: Path, kind: str, model: Path, steps: int) -> None:
    """SFT on the demonstrations of a kind, unless it is done."""
    run, recipe = output / kind, Path("scripts/recipes/quickstart/sft.yaml")
    if (run / "done").is_file():
        return
    shutil.rmtree(run, ignore_errors=True)
    call(
        "mmr1.cli",
        *("sft", recipe, f"model.path={model}", f"data.train={output}/data/{kind}.jsonl"),
        *(f"trainer.output_dir={run}", f"trainer.max_steps={steps}"),
    )
    (run / "done").touch()


def long_winded(sample: Sample, draws: random.Random) -> Sample:
    """The sample with a reply of random length, whose digit is wrong in half of the cases."""
    digit = int(sample.answer)
    if draws.random() < 0.5:
        digit = draws.choice([other for other in range(10) if other != digit])
    length = draws.lognormvariate(np.log(MEDIAN), SIGMA)
    return shown(sample, digit, int(min(max(length, SHORTEST), LONGEST - 20)))


def shown(sample: Sample, digit: int, words: int) -> Sample:
    reply = Message("assistant", (TextPart(answer(digit, words)),))
    return replace(sample, messages=(sample.messages[0], reply))


def answer(digit: int, words: int) -> str:
    return f"<answer>{digit}</answer>{' so' * words}"


def one_run(arm: str, seed: int, steps: int, output: Path) -> None:
    """Write a line per step; the trainer on one core and the engine on another."""
    cores = sorted(os.sched_getaffinity(0))
    if len(cores) < 2:
        sys.exit("this needs two cores")
    os.sched_setaffinity(0, {cores[0]})
    folder = folder_of(output, arm, seed)
    folder.mkdir(parents=True)
    last = STARTING + steps
    config = config_from(
        {
            "model": {"path": str(start_of(output)), "dtype": "float32"},
            "data": {"train": str(output / "data/asked.jsonl"), "train_batch_size": GROUPS},
            "rollout": {
                **{"n": N, "max_prompt_length": 64, "max_response_length": LONGEST},
                **ARMS[arm],
            },
            "rewards": {"math": 1.0},
            "scoring": {"timeout_s": 60},
            "optimizer": {"lr": 3e-4},
            "algorithm": {"kl": {"coef": 0.1}},
            "trainer": {
                **{"max_steps": last + ENDING, "output_dir": str(folder / "run"), "threads": 1},
                "checkpoints": None,
            },
            "seed": seed,
        },
        [],
    )
    with (folder / "output.txt").open("w") as log, contextlib.redirect_stdout(log):
        run = training_steps(config)
        with (folder / "steps.jsonl").open("w") as lines:
            engine = None
            for step in run:
                engine = engine or pinned_engine(cores[1])
                used, groups = engine.cpu_times(), [scored.group for scored in step.scored]
                line = {
                    "at": time.monotonic(),
                    "trainer_cpu": time.process_time(),
                    "engine_cpu": used.user + used.system,
                    "lengths": [[len(c.token_ids) for c in g.completions] for g in groups],
                    **step.metrics,
                }
                lines.write(json.dumps(line) + "\n")
                lines.flush()
                if step.number == last:
                    break
        run.close()
    (folder / "done").touch()


def pinned_engine(core: int) -> psutil.Process:
    """The engine's process, all threads of it on one core."""
    (process,) = [p for p in multiprocessing.active_children() if p.name == "mmr1-engine"]
    for thread in Path(f"/proc/{process.pid}/task").iterdir():
        os.sched_setaffinity(int(thread.name), {core})
    return psutil.Process(process.pid)


def lines_of(folder: Path) -> list[Line]:
    return [json.loads(line) for line in (folder / "steps.jsonl").read_text().splitlines()]


def summary(lines: Sequence[Line], accuracy: float) -> Line:
    """Of a run: means over the steps that are timed."""
    first, last = lines[STARTING - 1], lines[-1]
    timed, wall = lines[STARTING:], last["at"] - first["at"]
    return {
        "s/update": wall / len(timed),
        "trainer_idle": 1 - (last["trainer_cpu"] - first["trainer_cpu"]) / wall,
        "engine_idle": 1 - (last["engine_cpu"] - first["engine_cpu"]) / wall,
        "accuracy": fmean(line["reward/mean"] for line in lines[-10:]),
        "s to accuracy": seconds_to(lines, accuracy),
        "tokens": fmean(line["tokens/completion"] for line in timed),
        "age": fmean(map(age, timed)),
    }


def age(line: Line) -> float:
    return line.get("rollout/staleness_mean", line["rollout/staleness"])


def seconds_to(lines: Sequence[Line], accuracy: float) -> float | None:
    """From the end of the first step until the last ten have that accuracy on average."""
    for place in range(10, len(lines) + 1):
        if fmean(line["reward/mean"] for line in lines[place - 10 : place]) >= accuracy:
            return lines[place - 1]["at"] - lines[0]["at"]
    return None


def report(args: argparse.Namespace) -> None:
    """Print a table of the runs that are there."""
    runs = {
        (arm, seed): lines_of(folder_of(args.output, arm, seed))
        for arm in ARMS
        for seed in args.seeds
        if (folder_of(args.output, arm, seed) / "done").is_file()
    }
    summaries = {key: summary(lines, args.accuracy) for key, lines in runs.items()}
    in_turn = [lines for (arm, _), lines in runs.items() if arm == "in turn"]
    if not in_turn:
        return
    sampling, update, lengths = times_of(in_turn)
    rows = [row(arm, summaries) for arm in ARMS if any(a == arm for a, _ in runs)]
    common.table(rows)
    print("share: of the time in turn; trainer, engine: idle; right: of the last ten steps")
    print(
        f"in turn, an update samples for {sampling:.2f} s and learns for {update:.2f} s; lengths: "
        f"median {median(lengths):.0f}, 99th percentile {np.quantile(lengths, 0.99):.0f}"
    )
    results = {"rows": rows, "runs": {f"{a}, {s}": v for (a, s), v in summaries.items()}}
    common.save(args.output, "streaming", results)
    plot(runs, args.output / "streaming.png")


def row(arm: str, summaries: Mapping[tuple[str, int], Line]) -> Line:
    """Means over seeds; shares are of the run in turn with the same seed."""
    own = {seed: s for (a, seed), s in summaries.items() if a == arm}
    shares = [
        s["s/update"] / summaries["in turn", seed]["s/update"]
        for seed, s in own.items()
        if ("in turn", seed) in summaries
    ]
    reached = [s["s to accuracy"] for s in own.values()]
    return {
        "schedule": arm,
        "runs": len(own),
        "s/update": fmean(s["s/update"] for s in own.values()),
        "share": f"{min(shares):.2f}-{max(shares):.2f}" if shares else "-",
        "trainer": fmean(s["trainer_idle"] for s in own.values()),
        "engine": fmean(s["engine_idle"] for s in own.values()),
        "right": fmean(s["accuracy"] for s in own.values()),
        "s to it": "-" if None in reached else fmean(reached),
    }


def times_of(runs: Sequence[Sequence[Line]]) -> tuple[float, float, list[int]]:
    """Seconds of sampling and of an update in turn, and the lengths of completions."""
    lines = [line for run in runs for line in run[STARTING:]]
    walls = [b["at"] - a["at"] for run in runs for a, b in pairwise(run)]
    sampling = median(line["time/rollout"] for line in lines)
    update = median(walls) - sampling - median(line["time/sync"] for line in lines)
    return sampling, update, [n for line in lines for group in line["lengths"] for n in group]


def plot(runs: Mapping[tuple[str, int], Sequence[Line]], path: Path) -> None:
    """Draw accuracy over time, ten steps at a time: the picture of docs/streaming.md."""
    figure, axes = plt.subplots(figsize=(6, 3.5))
    for (arm, _), lines in runs.items():
        right = [line["reward/mean"] for line in lines]
        means = [fmean(right[max(0, i - 9) : i + 1]) for i in range(len(right))]
        color = f"C{list(ARMS).index(arm)}"
        axes.plot([line["at"] - lines[0]["at"] for line in lines], means, color=color)
    for index, arm in enumerate(ARMS):
        axes.plot([], [], color=f"C{index}", label=arm)
    axes.set(xlabel="seconds", ylabel="right")
    axes.legend()
    figure.savefig(path, dpi=120, bbox_inches="tight")
    print(f"written: {path}")


if __name__ == "__main__":
    main()
