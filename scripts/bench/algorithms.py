"""Train every algorithm on the quickstart's digits and print its rewards.

    scripts/quickstart.sh                      # once: makes the data and the SFT checkpoint
    python scripts/bench/algorithms.py         # every algorithm, three seeds
    python scripts/bench/algorithms.py --names grpo rloo --steps 100 --seeds 0

Each run is a separate process, because peak memory is measured per process. A run that exists under
``--output`` is not repeated. Rewards are means over the first and the last tenth of a run.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path
from statistics import fmean
from typing import Any

from rich.console import Console
from rich.progress import track
from rich.table import Table

from mmr1.config.presets import PRESETS
from mmr1.report.curves import read_metrics

RECIPE = Path("scripts/recipes/quickstart/rl.yaml")
VIDEO = Path("runs/bench/video")
T_GRPO = "t_grpo"  # GRPO with the reward function that compares orders of frames
NEEDS = {
    # Videos of two scans: which digit comes first?
    T_GRPO: [
        "algorithm.name=grpo",
        "trainer.max_steps=40",
        f"model.path={VIDEO}/sft/checkpoints/step_000120",
        f"data.train={VIDEO}/data/order-rl.jsonl",
        "rewards={format: {weight: 0.5}, math: {}, temporal_contrast: {of: math}}",
        "rollout.views={view: shuffle, loss: none}",
    ],
    "kl_cov": ["algorithm.ppo_epochs=2"],  # the first update does not differ from GRPO's
    "process_grpo": ["algorithm.advantage.step_rewards=scripts/bench/digit_steps.py:judge"],
    # At first the greedy baseline is far above the sampled rewards: most advantages are negative.
    "remax": ["trainer.max_steps=150"],
    # λ < 1 relies on the critic, so the critic is warmed up before the policy trains.
    "ppo": [
        *("algorithm.advantage.critic.lr=1e-3", "algorithm.advantage.critic.ppo_epochs=4"),
        *("algorithm.advantage.critic.cliprange_value=null", "algorithm.advantage.lam=0.8"),
        *("algorithm.advantage.critic.warmup_steps=15", "trainer.max_steps=75"),
    ],
}
# scripts/bench/distillation.py has the one with a teacher.
NAMES = [name for name in (*PRESETS, T_GRPO) if name != "on_policy_distillation"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--names", nargs="+", default=NAMES)
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    parser.add_argument("--steps", type=int, default=150)
    parser.add_argument("--engine", default="vllm", choices=["vllm", "hf"])
    parser.add_argument("--output", type=Path, default=Path("runs/bench/algorithms"))
    args = parser.parse_args()
    if T_GRPO in args.names:
        make_videos()
    runs = [(name, seed) for name in args.names for seed in args.seeds]
    rows = [
        {"name": name, "seed": seed, **measure(args, name, seed)}
        for name, seed in track(runs, disable=not Console().is_terminal)
    ]
    (args.output / "table.json").write_text(json.dumps(rows, indent=2) + "\n")
    print_table(args.names, rows)


def make_videos() -> None:
    """Make the videos and their SFT checkpoint, unless they exist."""
    data, sft = VIDEO / "data", VIDEO / "sft"
    make = ("-m", "datasets_prep", "make", "video", "--output", data)
    demonstrations = f"data.train={data}/order-sft.jsonl"
    teach = (*("-m", "mmr1.cli", "sft", RECIPE.with_name("sft.yaml")), demonstrations)
    for made, command in ((data, make), (sft, (*teach, f"trainer.output_dir={sft}"))):
        if not made.exists():
            subprocess.run([sys.executable, *map(str, command)], check=True)


def measure(args: argparse.Namespace, name: str, seed: int) -> dict[str, float]:
    """Reward at start and end, wall seconds and peak memory of one run."""
    folder = args.output / f"{name}-{seed}"
    result = folder / "measured.json"
    if not result.is_file():
        memory = train(args, name, seed, folder / "run")
        metrics = read_metrics(folder / "run/metrics.jsonl")
        rewards = metrics["reward/mean"]
        tenth = max(1, len(rewards) // 10)
        measured = {
            "start": fmean(rewards[:tenth]),
            "end": fmean(rewards[-tenth:]),
            "seconds": sum(metrics["time/step"]),
            "gib": memory,
        }
        if "critic/explained_variance" in metrics:
            measured["explained_variance"] = fmean(metrics["critic/explained_variance"][-tenth:])
        result.write_text(json.dumps(measured) + "\n")
    figures: dict[str, float] = json.loads(result.read_text())
    return figures


def train(args: argparse.Namespace, name: str, seed: int, folder: Path) -> float:
    """``mmr1 train`` in a separate process; the trainer's peak memory in GiB."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    command: list[Any] = [
        *(sys.executable, "-m", "mmr1.cli", "train", RECIPE),
        *(f"algorithm.name={name}", f"seed={seed}", f"trainer.max_steps={args.steps}"),
        *(f"trainer.output_dir={folder}", f"rollout.engine={args.engine}"),
        "trainer.validation=null",
        *NEEDS.get(name, []),
    ]
    with (folder.parent / "log").open("w") as log:
        process = subprocess.Popen(list(map(str, command)), stdout=log, stderr=log)
        _, status, usage = os.wait4(process.pid, 0)
    if status:
        sys.exit(f"{name}, seed {seed} failed; see {folder.parent / 'log'}")
    return usage.ru_maxrss / 2**20  # KiB on Linux


def print_table(names: list[str], rows: list[dict[str, Any]]) -> None:
    table = Table(
        "algorithm", "reward at start", "at end", "improved", "seconds", "GiB", "explained"
    )
    for name in names:
        own = [row for row in rows if row["name"] == name]
        better = sum(row["end"] > row["start"] for row in own)
        table.add_row(
            name,
            " ".join(f"{row['start']:.3f}" for row in own),
            " ".join(f"{row['end']:.3f}" for row in own),
            f"{better} of {len(own)}",
            f"{fmean(row['seconds'] for row in own):.0f}",
            f"{max(row['gib'] for row in own):.2f}",
            " ".join(f"{r['explained_variance']:.2f}" for r in own if "explained_variance" in r),
        )
    Console().print(table)


if __name__ == "__main__":
    main()
