"""DPO, iterative DPO and a reward model on the quickstart's digits: what each gains, held out.

    scripts/quickstart.sh                        # once: the data and the supervised checkpoint
    python scripts/bench/preferences.py          # all three, seed 0
    python scripts/bench/preferences.py --steps 40 --limit 200

The pairs of DPO and of the reward model prefer the right digit to a wrong one, both in the
demonstrations' own form. Runs under ``--output`` must not exist yet.
"""

from __future__ import annotations

import argparse
import json
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

RECIPE = Path("scripts/recipes/quickstart/rl.yaml")
DATA = Path("runs/quickstart/data")
START = Path("runs/quickstart/sft/checkpoints/step_000120")
WORDS = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--steps", type=int, default=80)
    parser.add_argument("--limit", type=int, default=500, help="held-out records")
    parser.add_argument("--engine", default="hf", choices=["vllm", "hf"])
    parser.add_argument("--output", type=Path, default=Path("runs/bench/preferences"))
    args = parser.parse_args()
    pairs = {split: write_pairs(args, split) for split in ("rl", "eval")}

    table = Table("", "held-out accuracy", "sampled")
    table.add_row("start", *accuracy(args, START))
    offline = ("dpo.nll_coef=1", "optimizer.lr=3e-4")
    dpo = mmr1(args, "dpo", "dpo", f"data.train={pairs['rl']}", "data.eval=null", *offline)
    table.add_row("DPO", *accuracy(args, dpo))
    rounds = ("dpo.rounds=4", "dpo.prompts=128", "dpo.nll_coef=1", "optimizer.lr=3e-4")
    own = mmr1(args, "dpo", "iterative", "data.eval=null", *rounds)
    table.add_row("iterative DPO", *accuracy(args, own))
    Console().print(table)

    data = (f"data.train={pairs['rl']}", f"data.eval={pairs['eval']}", f"eval.limit={args.limit}")
    mmr1(args, "rm", "rm", *data, "optimizer.lr=5e-4")
    result = json.loads((args.output / "rm/eval/result.json").read_text())
    print(
        f"reward model: {result['accuracy']:.3f} of {result['pairs']} held-out pairs ranked right"
    )


def write_pairs(args: argparse.Namespace, split: str) -> Path:
    """The records of a split with a right and a wrong answer each, beside the others' media."""
    rng = random.Random(f"{args.seed} {split}")
    rows = [json.loads(line) for line in (DATA / f"{split}.jsonl").open()]
    for row in rows:
        digit = int(row["answer"])
        wrong = rng.choice([other for other in range(10) if other != digit])
        row["meta"] = {"chosen": answer(digit), "rejected": answer(wrong)}
    path = args.output / f"pairs-{split}.jsonl"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def answer(digit: int) -> str:
    return f"<think>The digit is {WORDS[digit]}.</think><answer>{digit}</answer>"


def mmr1(args: argparse.Namespace, command: str, name: str, *overrides: str) -> Path:
    """Run one command from the supervised checkpoint; its last checkpoint."""
    run(
        *(command, RECIPE, f"seed={args.seed}", f"model.path={START}", f"data.media_root={DATA}"),
        *(f"trainer.output_dir={args.output / name}", f"trainer.max_steps={args.steps}"),
        *(f"rollout.engine={args.engine}", *overrides),
    )
    return max((args.output / name / "checkpoints").glob("step_*"))


def accuracy(args: argparse.Namespace, model: Path) -> list[str]:
    """Held out: of the greedy and of a sampled completion."""
    output = args.output / "eval" / model.parents[1].name
    run(
        *("eval", RECIPE, f"model.path={model}", f"eval.output={output}"),
        *(f"eval.limit={args.limit}", "rollout.engine=hf"),
    )
    result: dict[str, Any] = json.loads((output / "result.json").read_text())
    return [f"{result[mode]['accuracy']:.3f}" for mode in ("greedy", "sampled")]


def run(*arguments: object) -> None:
    finished = subprocess.run([sys.executable, "-m", "mmr1.cli", *map(str, arguments)], check=False)
    if finished.returncode:
        sys.exit(finished.returncode)


if __name__ == "__main__":
    main()
