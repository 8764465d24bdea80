"""A text model learns sums of three digits: held-out accuracy after SFT, GRPO and a control.

    python scripts/bench/text_sums.py                      # Qwen3, three seeds
    python scripts/bench/text_sums.py --family llama --seeds 0

Of the 1000 questions 100 have demonstrations, GRPO is paid for the right answer to 700 others, and
200 are held out. Every run starts from a random model of a family (``mmr1 model new``). The control
continues SFT for 4000 steps, which takes about as long as GRPO. A run that exists under
``--output`` is not repeated.
"""

from __future__ import annotations

import argparse
import json
import random
from itertools import product
from pathlib import Path
from typing import Any

from digit_runs import accuracies, call, newest, train
from rich.console import Console
from rich.table import Table

SPLITS = {"sft": 100, "rl": 700, "eval": 200}
LONGEST = "rollout.max_response_length=56"
SFT_STEPS = 200
RL_STEPS = 300
CONTROL_STEPS = 4000
# With the learning rate of the digits, fewer completions and more weight of the format it learns
# the format alone.
RL = (
    *("rewards.functions.thought=null", "rewards.functions.format.weight=0.1"),
    *("rollout.engine=hf", "rollout.n=16", LONGEST),
    *("data.train_batch_size=32", "optimizer.lr=1e-4"),
)
STAGES = ("start", "sft", "control", "rl")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--family", default="qwen3")
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    parser.add_argument("--output", type=Path, default=Path("runs/bench/text_sums"))
    args = parser.parse_args()
    table = Table(
        "seed", *(f"{stage}, {mode}" for stage in STAGES for mode in ("greedy", "sampled"))
    )
    for seed in args.seeds:
        folder = args.output / f"{args.family}-{seed}"
        table.add_row(str(seed), *of_stages(args.family, seed, folder))
    Console().print(table)


def of_stages(family: str, seed: int, folder: Path) -> list[str]:
    """Greedy and sampled accuracy of each stage, run unless it exists."""
    write_questions(folder / "data", seed)
    if not (folder / "model/config.json").is_file():
        call("mmr1.cli", "model", "new", "--family", family, "--seed", seed, folder / "model")
    demonstrated, asked = (f"data.train={folder}/data/{split}.jsonl" for split in ("sft", "rl"))
    train(folder / "sft", folder / "model", seed, "sft", SFT_STEPS, demonstrated)
    sft = newest(folder / "sft")
    train(folder / "rl", sft, seed, "rl", RL_STEPS, asked, "trainer.validation=null", *RL)
    train(folder / "control", sft, seed, "sft", CONTROL_STEPS, demonstrated)
    figures = []
    for stage in STAGES:
        model = folder / "model" if stage == "start" else newest(folder / stage)
        held_out = f"eval.data={folder}/data/eval.jsonl"
        without = ("rewards.functions.thought=null", LONGEST)
        figures += accuracies(model, folder / "eval" / stage, held_out, *without)
    return figures


def write_questions(folder: Path, seed: int) -> None:
    """All sums of three digits, in a random order, as the records of the splits."""
    folder.mkdir(parents=True, exist_ok=True)
    questions = list(product(range(10), repeat=3))
    random.Random(seed).shuffle(questions)
    for split, count in SPLITS.items():
        rows = [record(question, split == "sft") for question in questions[:count]]
        questions = questions[count:]
        (folder / f"{split}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


def record(digits: tuple[int, ...], demonstrated: bool) -> dict[str, Any]:
    a, b, c = digits
    messages = [{"role": "user", "content": f"What is {a} + {b} + {c}?"}]
    if demonstrated:
        thought = f"{a}+{b}={a + b}, {a + b}+{c}={a + b + c}."
        reply = f"<think>{thought}</think><answer>{a + b + c}</answer>"
        messages.append({"role": "assistant", "content": reply})
    return {
        **{"version": 1, "id": f"{a}-{b}-{c}", "messages": messages},
        **{"answer": str(a + b + c), "task": "math", "source": "sums"},
    }


if __name__ == "__main__":
    main()
