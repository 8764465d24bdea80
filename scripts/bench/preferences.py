"""Preference losses, rounds and a reward model on the quickstart's digits: held-out accuracy.

    scripts/quickstart.sh                        # once: makes the data and the SFT checkpoint
    python scripts/bench/preferences.py          # all, three seeds
    python scripts/bench/preferences.py --names rm --seeds 1

The pairs for DPO and the reward model prefer the right digit to a wrong one, both in the format of
the demonstrations. A training scan has nine pairs, one per wrong digit; a held-out scan has one
pair. Every run starts from the SFT checkpoint. A run that exists under ``--output`` is not
repeated.
"""

from __future__ import annotations

import argparse
import json
import random
from pathlib import Path

from digit_runs import DATA, NOT_SAMPLING, RECIPE, START, accuracies, call, newest
from rich.console import Console
from rich.table import Table

from mmr1.report.curves import read_metrics

WORDS = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")
# The loss of the reward model stays at ln 2 until it compares scan and answer. That takes tens of
# steps at the recipe's learning rate, and more than 400 steps at 1e-3.
OFFLINE = ("dpo", *NOT_SAMPLING, "trainer.max_steps=150", "trainer.validation=null")
ROUNDS = (
    *("dpo", "algorithm=null", "trainer.max_steps=80", "trainer.validation=null"),
    *("dpo.rounds.count=4", "dpo.rounds.prompts=128"),
)
NLL = "dpo.loss.nll_coef=1"
RUNS = {
    "dpo": (*OFFLINE, NLL),
    "dpo-conservative": (*OFFLINE, NLL, "dpo.loss.label_smoothing=0.1"),
    "dpo-norm": (*OFFLINE, NLL, "dpo.loss.type=sigmoid_norm", "dpo.loss.beta=1"),
    "ipo": (*OFFLINE, NLL, "dpo.loss.type=ipo", "dpo.loss.beta=0.5"),
    "robust": (*OFFLINE, NLL, "dpo.loss.type=robust", "dpo.loss.label_smoothing=0.1"),
    "simpo": (*OFFLINE, NLL, "dpo.loss.type=simpo", "dpo.loss.beta=2"),
    "orpo": (*OFFLINE, "dpo.loss.type=orpo", "dpo.loss.beta=1"),
    "kto": (*OFFLINE, "dpo.loss.type=kto"),
    "iterative": (*ROUNDS, NLL),
    "iterative-kto": (*ROUNDS, "dpo.loss.type=kto"),
    "rm": ("rm", *NOT_SAMPLING, "trainer.max_steps=600"),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--names", nargs="+", default=list(RUNS), choices=list(RUNS))
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    parser.add_argument("--engine", default="hf", choices=["vllm", "hf"])
    parser.add_argument("--output", type=Path, default=Path("runs/bench/preferences"))
    args = parser.parse_args()
    table = Table("", "seed", "greedy", "sampled", "pairs ranked right", "seconds")
    if args.names != ["rm"]:
        table.add_row("start", "", *accuracies(START, args.output / "start"))
    for name in args.names:
        for seed in args.seeds:
            folder = args.output / f"{name}-{seed}"
            seconds = train(name, seed, folder, args.engine)
            table.add_row(name, str(seed), *held_out(name, folder), f"{seconds:.0f}")
    Console().print(table)


def train(name: str, seed: int, folder: Path, engine: str) -> float:
    """Train one run, unless it exists; returns the wall seconds of its steps."""
    done = folder / "done"
    if not done.is_file():
        pairs = {split: write_pairs(seed, split, folder) for split in ("rl", "eval")}
        in_rounds = "dpo.rounds.count=4" in RUNS[name]
        overrides = [f"rollout.engine={engine}" if in_rounds else f"data.train={pairs['rl']}"]
        if name == "rm":
            overrides.append(f"trainer.validation.data={pairs['eval']}")
        command, *settings = RUNS[name]
        call(
            *("mmr1.cli", command, RECIPE, *settings, *overrides),
            *(f"seed={seed}", f"model.path={START}"),
            *(f"data.media_root={DATA}", f"trainer.output_dir={folder / 'run'}"),
            "data.train_batch_size=32",
        )
        done.touch()
    return sum(read_metrics(folder / "run/metrics.jsonl")["time/step"])


def held_out(name: str, folder: Path) -> list[str]:
    """Greedy and sampled accuracy of a policy, or the ranking accuracy of a reward model."""
    if name != "rm":
        return [*accuracies(newest(folder / "run"), folder / "eval"), ""]
    result = json.loads((folder / "run/eval/result.json").read_text())
    return ["", "", f"{result['accuracy']:.3f} of {result['pairs']}"]


def write_pairs(seed: int, split: str, folder: Path) -> Path:
    """Pairs of a split: of a training scan one per wrong digit, of a held-out scan one."""
    rng = random.Random(f"{seed} {split}")
    rows = []
    for row in map(json.loads, (DATA / f"{split}.jsonl").open()):
        digit = int(row["answer"])
        wrong = [other for other in range(10) if other != digit]
        for other in wrong if split == "rl" else [rng.choice(wrong)]:
            pair = {"chosen": answer(digit), "rejected": answer(other)}
            rows.append({**row, "id": f"{row['id']}-{other}", "meta": pair})
    path = folder / f"pairs-{split}.jsonl"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def answer(digit: int) -> str:
    return f"<think>The digit is {WORDS[digit]}.</think><answer>{digit}</answer>"


if __name__ == "__main__":
    main()
