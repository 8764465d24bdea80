"""A student taught by the quickstart's RL policy, against SFT on that teacher's samples.

    scripts/quickstart.sh                       # once: data, the student's start and the teacher
    python scripts/bench/distillation.py        # all, three seeds
    python scripts/bench/distillation.py --names sft --seeds 1

Student and teacher have the same architecture. The student starts from the supervised checkpoint.
All runs learn from as many completions: 60 steps of 128. Distillation pays no reward: it is shown
the questions of the training scans and no answers. SFT is shown the teacher's right answers to the
same questions. A run that exists under ``--output`` is not repeated.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from digit_runs import DATA, NOT_SAMPLING, RECIPE, START, accuracies, call, newest
from rich.console import Console
from rich.table import Table

from mmr1.report.curves import read_metrics

TEACHER = Path("runs/quickstart/rl/checkpoints/step_000400")
STEPS = "trainer.max_steps=60"
UNPAID = (
    *("rewards.format.weight=0", "rewards.math.weight=0"),
    "rewards.thought.weight=0",
)
FULL = ("algorithm.kl.type=full", "algorithm.kl.reference.type=model")
RUNS = {
    "sft": ("sft", *NOT_SAMPLING, "data.train_batch_size=128"),
    "on_policy": ("train", *UNPAID, "algorithm.name=on_policy_distillation"),
    "reverse KL": ("train", *UNPAID, *FULL, "algorithm.kl.coef=1"),
    "GKD": (
        *("train", *UNPAID, *FULL, "algorithm.kl.coef=0.5", "algorithm.kl.jsd_beta=0.5"),
        *("algorithm.ptx.coef=0.5", "algorithm.ptx.loss=distillation"),
        "algorithm.ptx.batch_size=64",
    ),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--names", nargs="+", default=list(RUNS), choices=list(RUNS))
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    parser.add_argument("--teacher", type=Path, default=TEACHER)
    parser.add_argument("--output", type=Path, default=Path("runs/bench/distillation"))
    args = parser.parse_args()
    samples = write_samples(args.teacher, args.output)
    table = Table("", "seed", "greedy", "sampled", "seconds")
    for name, model in {"start": START, "teacher": args.teacher}.items():
        table.add_row(name, "", *accuracies(model, args.output / name))
    for name in args.names:
        for seed in args.seeds:
            folder = args.output / f"{name.replace(' ', '_')}-{seed}"
            seconds = train(name, seed, args.teacher, samples, folder)
            scores = accuracies(newest(folder / "run"), folder / "eval")
            table.add_row(name, str(seed), *scores, f"{seconds:.0f}")
    Console().print(table)


def write_samples(teacher: Path, output: Path) -> Path:
    """The teacher's right answers to the training scans, up to eight different ones of each."""
    samples = output / "samples.jsonl"
    if not samples.is_file():
        folder = output / "sampled"
        where = (f"eval.data={DATA / 'rl.jsonl'}", f"eval.output_dir={folder}", "eval.sampled.n=8")
        call("mmr1.cli", "eval", RECIPE, f"model.path={teacher}", "rollout.engine=hf", *where)
        call(
            *("datasets_prep", "demonstrations", DATA / "rl.jsonl", folder / "completions.jsonl"),
            *("--output", samples, "--per-record", "8"),
        )
    return samples


def train(name: str, seed: int, teacher: Path, samples: Path, folder: Path) -> float:
    """Train one run, unless it exists; returns the wall seconds of its steps."""
    done = folder / "done"
    if not done.is_file():
        command, *settings = RUNS[name]
        if command == "sft":
            settings += [f"data.train={samples}", "trainer.validation=null"]
        else:
            key = "advantage.teacher" if name == "on_policy" else "kl.reference"
            settings += [f"algorithm.{key}.path={teacher}", "rollout.engine=hf"]
        if "algorithm.ptx.loss=distillation" in settings:
            settings.append(f"algorithm.ptx.data={samples}")
        call(
            *("mmr1.cli", command, RECIPE, STEPS, *settings, f"seed={seed}", f"model.path={START}"),
            f"trainer.output_dir={folder / 'run'}",
        )
        done.touch()
    return sum(read_metrics(folder / "run/metrics.jsonl")["time/step"])


if __name__ == "__main__":
    main()
