"""SFT, RL and evaluation on a CPU. ``quickstart.sh`` calls this.

    scripts/quickstart.sh                            GRPO, vLLM rollouts, seed 0
    scripts/quickstart.sh seed=1 algorithm.name=rloo
    scripts/quickstart.sh rollout.engine=hf --control
    scripts/quickstart.sh model.family=qwen3_vl      the tiny model of another family

Overrides apply to the RL stage, ``seed`` and ``model.family`` to every stage. ``--control`` also
continues SFT for as long as RL took, which shows how much of the gain is due to compute. What was
interrupted continues, stage by stage, with the same arguments.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from datetime import datetime
from pathlib import Path
from statistics import fmean
from typing import Any

from rich.console import Console
from rich.table import Table

from mmr1.registry import import_file
from mmr1.report.curves import plot_rewards, read_metrics

control_steps = import_file(Path(__file__).parents[1] / "control_steps.py").control_steps

RUN = Path("runs/quickstart")
RECIPE = Path("scripts/recipes/quickstart")
ARGUMENTS = RUN / "arguments.json"
"""Written once the data and the model are there."""
SUMMARY = RUN / "summary.json"
"""Written at the end."""
FAMILY = "model.family="
console = Console(highlight=False, soft_wrap=True)


def main(arguments: list[str]) -> None:
    control = "--control" in arguments
    overrides = [a for a in arguments if a != "--control" and not a.startswith(FAMILY)]
    named = [a.removeprefix(FAMILY) for a in arguments if a.startswith(FAMILY)]
    family = ["--family", named[-1]] if named else []
    seed = next((a for a in overrides if a.startswith("seed=")), "seed=0")
    number = seed.removeprefix("seed=")
    setup = RUN.with_name(".setup_seconds")  # quickstart.sh has measured it
    seconds = {"setup": float(setup.read_text())} if setup.exists() else {}
    results: dict[str, dict[str, Any]] = {}

    def evaluation(name: str, model: Path) -> None:
        output = RUN / "eval" / name
        # For a thousand short completions, starting vLLM takes longer than sampling.
        where = (f"model.path={model}", f"eval.output_dir={output}", "rollout.engine=hf")
        run("eval", RECIPE / "rl.yaml", *where)
        results[name] = read_result(output)

    if not was_interrupted(arguments):
        set_aside_old_run()
        with stage("data", seconds):
            data = RUN / "data"
            call("-m", "datasets_prep", "make", "digits", "--output", data, "--seed", number)
            run("model", "new", *family, "--seed", number, RUN / "model")
        ARGUMENTS.write_text(json.dumps(arguments))
    with stage("eval", seconds):
        evaluation("start", RUN / "model")
    with stage("sft", seconds):
        run("sft", RECIPE / "sft.yaml", seed, "--resume")
    with stage("eval", seconds):
        evaluation("sft", last_checkpoint("sft"))
    with stage("rl", seconds):
        run("train", RECIPE / "rl.yaml", *overrides, "--resume")
    with stage("eval", seconds):
        evaluation("rl", last_checkpoint("rl"))
    if control:
        with stage("control", seconds):
            steps = control_steps(RUN / "sft", RUN / "rl")
            run(
                "sft",
                RECIPE / "sft.yaml",
                seed,
                f"model.path={last_checkpoint('sft')}",
                f"trainer.max_steps={steps}",
                f"trainer.output_dir={RUN / 'control'}",
                f"trainer.logging_steps={max(1, steps // 4)}",
                "--resume",
            )
            evaluation("control", last_checkpoint("control"))

    title = f"quickstart, seed {number}"
    plot_rewards(read_metrics(RUN / "rl/metrics.jsonl"), RUN / "rewards.png", title)
    summary = summarise(int(number), results, seconds)
    SUMMARY.write_text(json.dumps(summary, indent=2) + "\n")
    print_table(summary)


class stage:  # noqa: N801 (reads as a verb)
    """Announce a stage and add its wall seconds to ``seconds[name]``."""

    def __init__(self, name: str, seconds: dict[str, float]) -> None:
        self.name, self.seconds = name, seconds

    def __enter__(self) -> None:
        console.rule(self.name, align="left")
        self.start = time.perf_counter()

    def __exit__(self, *exc: object) -> None:
        spent = time.perf_counter() - self.start
        self.seconds[self.name] = round(self.seconds.get(self.name, 0) + spent, 1)


def run(command: str, *arguments: object) -> None:
    """Run ``mmr1 COMMAND ...``; a failure ends the quickstart with the same exit code."""
    console.print("$ mmr1", command, *arguments)
    call("-m", "mmr1.cli", command, *arguments)


def call(*arguments: object) -> None:
    finished = subprocess.run([sys.executable, *map(str, arguments)], check=False)
    if finished.returncode:
        sys.exit(finished.returncode)


def was_interrupted(arguments: list[str]) -> bool:
    """Return whether a quickstart with these arguments has begun and not ended."""
    if SUMMARY.exists() or not ARGUMENTS.exists():
        return False
    same: bool = json.loads(ARGUMENTS.read_text()) == arguments
    return same


def set_aside_old_run() -> None:
    """Rename the folder of an earlier quickstart, so that nothing is overwritten."""
    if RUN.exists():
        made = datetime.fromtimestamp(RUN.stat().st_mtime)
        kept = RUN.with_name(f"quickstart-{made:%Y%m%d-%H%M%S}")
        RUN.rename(kept)
        console.print(f"the earlier run is kept as {kept}")


def last_checkpoint(run_name: str) -> Path:
    return max((RUN / run_name / "checkpoints").glob("step_*"))


def read_result(folder: Path) -> dict[str, Any]:
    """Accuracy, format rate and agreement of thought and answer, greedy and sampled."""
    result = json.loads((folder / "result.json").read_text())
    rows = [json.loads(line) for line in (folder / "completions.jsonl").open()]
    agrees = import_file(RECIPE / "thought.py").agrees
    return {
        mode: {
            "accuracy": result[mode]["accuracy"],
            "format_rate": result[mode]["components"]["format"],
            "agreement": fmean(agrees(r["completion"]) for r in rows if r["mode"] == mode),
        }
        for mode in ("greedy", "sampled")
    }


def summarise(
    seed: int, results: dict[str, dict[str, Any]], seconds: dict[str, float]
) -> dict[str, Any]:
    def each(mode: str, number: str) -> dict[str, float]:
        return {name: round(result[mode][number], 4) for name, result in results.items()}

    return {
        "seed": seed,
        "accuracy": each("greedy", "accuracy"),
        "format_rate": each("greedy", "format_rate"),
        "agreement": each("greedy", "agreement"),
        "sampled": {n: each("sampled", n) for n in ("accuracy", "format_rate", "agreement")},
        "seconds": seconds,
        "checkpoint": str(last_checkpoint("rl")),
        "metrics": str(RUN / "rl/metrics.jsonl"),
    }


def print_table(summary: dict[str, Any]) -> None:
    titles = {"start": "untrained", "sft": "after SFT", "rl": "after RL", "control": "SFT control"}
    stages = [name for name in titles if name in summary["accuracy"]]
    table = Table("500 held-out scans", *(titles[s] for s in stages), title="quickstart")
    for label, numbers in (
        ("accuracy, greedy", summary["accuracy"]),
        ("accuracy, sampled", summary["sampled"]["accuracy"]),
        ("format rate, greedy", summary["format_rate"]),
        ("format rate, sampled", summary["sampled"]["format_rate"]),
        ("thought agrees with answer", summary["agreement"]),
    ):
        table.add_row(label, *(f"{numbers[s]:.3f}" for s in stages))
    console.print(table)
    spent = ", ".join(f"{name} {value:.0f}" for name, value in summary["seconds"].items())
    console.print(f"seconds: {spent}")
    console.print(f"checkpoint: {summary['checkpoint']}")
    console.print(f"curve: {RUN / 'rewards.png'}, numbers: {RUN / 'summary.json'}")


if __name__ == "__main__":
    main(sys.argv[1:])
