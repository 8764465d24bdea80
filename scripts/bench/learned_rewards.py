"""Policies that are paid by learned rewards, on the quickstart's digits: held-out accuracy.

    scripts/quickstart.sh                           # once: makes the data and the SFT checkpoint
    python scripts/bench/preferences.py --names rm  # the reward models of pairs, three seeds
    python scripts/bench/learned_rewards.py         # all, three seeds
    python scripts/bench/learned_rewards.py --names steps process_grpo --seeds 1

``steps`` trains a reward model of steps and lets it choose among eight completions of the SFT
checkpoint; in ``process_grpo`` it pays the steps. ``ranks`` trains a reward model of whole
completions; in ``iterative-grpo`` it pays for two rounds of GRPO, beside the format, and learns on
between them. The policies start from the SFT checkpoint and have as many steps.

Both reward models start from the one of pairs. They learn from what the SFT checkpoint samples for
the training scans, with the rule's verdicts, and from written answers with right and with wrong
digits. A run that exists under ``--output`` is not repeated.
"""

from __future__ import annotations

import argparse
import json
import random
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from digit_runs import DATA, NOT_SAMPLING, RECIPE, START, accuracies, call, newest
from digit_steps import END
from preferences import WORDS
from rich.console import Console
from rich.table import Table

from mmr1_contrib.offline.rankings import best_first

Row = dict[str, Any]
STEPS = 60
ROUNDS = 2
REWARD_MODEL = "trainer.max_steps=200"
WRONG_DIGIT = 0.3
PAIRS = Path("runs/bench/preferences")
RUNS = ("steps", "process_grpo", "ranks", "iterative-grpo")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--names", nargs="+", default=list(RUNS), choices=list(RUNS))
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    parser.add_argument("--output", type=Path, default=Path("runs/bench/learned_rewards"))
    args = parser.parse_args()
    sampled = sample_start(args.output)
    table = Table("", "seed", "greedy", "sampled", "held out")
    table.add_row("start", "", *accuracies(START, args.output / "start"))
    for seed in args.seeds:
        for name in (name for name in RUNS if name in args.names):
            table.add_row(name, str(seed), *run(name, seed, args.output, sampled))
    Console().print(table)


def sample_start(output: Path) -> Path:
    """Eight completions of each training scan by the SFT checkpoint."""
    folder = output / "sampled"
    if not (folder / "result.json").is_file():
        where = (f"eval.data={DATA / 'rl.jsonl'}", f"eval.output_dir={folder}", "eval.sampled.n=8")
        call("mmr1.cli", "eval", RECIPE, f"model.path={START}", "rollout.engine=hf", *where)
    return folder / "completions.jsonl"


def run(name: str, seed: int, output: Path, sampled: Path) -> list[str]:
    """Train one run, unless it exists; its accuracies, or what a reward model gets right."""
    folder = output / f"{name}-{seed}"
    pairs = PAIRS / f"rm-{seed}"
    if name == "steps":
        settings = of_steps(folder, seed, sampled, output / "start")
        train("rm", folder, seed, newest(pairs / "run"), *settings)
        best = best_of_eight(newest(folder / "run"), folder)
        return ["", "", f"{of_held_out(folder)} of steps, {best}"]
    if name == "ranks":
        train("rm", folder, seed, newest(pairs / "run"), *of_completions(folder, pairs, sampled))
        return ["", "", f"{of_held_out(folder)} of pairs"]
    ranks = output / f"ranks-{seed}"
    last = folder / (f"run/round_{ROUNDS}/policy" if name == "iterative-grpo" else "run")
    if name == "process_grpo":
        paid = f"algorithm.advantage.step_rewards={newest(output / f'steps-{seed}/run')}"
        keys = ("algorithm.name=process_grpo", paid, f"trainer.max_steps={STEPS}")
        train("train", folder, seed, START, *keys)
    else:
        train(
            "iterative-grpo", folder, seed, START, *liked(ranks), *rounds(ranks / "rankings.jsonl")
        )
    return [*accuracies(newest(last), folder / "eval"), ""]


def liked(judge: Path) -> Iterator[str]:
    """Rewards of the format and of a reward model, whose values are within 4 or so of 0."""
    yield from ("rewards.functions.math.weight=0", "rewards.functions.thought.weight=0")
    yield f"rewards.functions.liked={reward_model(newest(judge / 'run'), 0.25)}"


def rounds(history: Path) -> Iterator[str]:
    yield f"trainer.max_steps={STEPS // ROUNDS}"
    yield f"iterative_grpo.rounds={ROUNDS}"
    yield from ("iterative_grpo.rm_steps=50", f"iterative_grpo.history={history}")


def train(command: str, folder: Path, seed: int, start: Path, *settings: str) -> None:
    """Train one run, unless it exists."""
    done = folder / "done"
    if not done.is_file():
        if command != "rm":
            settings = (*settings, "trainer.validation=null", "rollout.engine=hf")
        else:
            settings = (*settings, *NOT_SAMPLING, "data.train_batch_size=32")
        call(
            "mmr1.cli",
            *(command, RECIPE, *settings, f"seed={seed}", f"model.path={start}"),
            *(f"data.media_root={DATA}", f"trainer.output_dir={folder / 'run'}"),
        )
        done.touch()


def reward_model(path: Path, weight: float) -> str:
    return f"{{use: reward_model, weight: {weight}, options: {{path: {path}}}}}"


def best_of_eight(model: Path, folder: Path) -> str:
    """Accuracy of the one of the SFT checkpoint's eight completions that the model prefers."""
    result = folder / "best/result.json"
    if not result.is_file():
        call(
            "mmr1.cli",
            *("eval", RECIPE, f"model.path={START}", "rollout.engine=hf", "eval.sampled.n=8"),
            *(f"rewards.functions.steps={reward_model(model, 0)}", "eval.sampled.best_of=steps"),
            f"eval.output_dir={result.parent}",
        )
    mode = json.loads(result.read_text())["sampled"]
    return f"best of 8: {mode['best_of']:.3f} (mean {mode['accuracy']:.3f})"


def of_held_out(folder: Path) -> str:
    """The share of held-out examples that a reward model judges right."""
    result = json.loads((folder / "run/eval/result.json").read_text())
    return f"{result['accuracy']:.3f}"


def of_steps(folder: Path, seed: int, sampled: Path, held_out: Path) -> Iterator[str]:
    """Writes the labelled steps that a reward model of steps learns from; its settings."""
    rng = random.Random(seed)
    scans = read(DATA / "rl.jsonl")
    written = [
        labelled(row, f"written-{wrong}", written_answer(row, wrong, rng))
        for row in scans
        for wrong in range(10)
        if wrong != int(row["answer"])
    ]
    own = labelled_samples(scans, read(sampled))
    tested = labelled_samples(read(DATA / "eval.jsonl"), read(held_out / "completions.jsonl"))
    parts = (write(folder / "written.jsonl", written), write(folder / "own.jsonl", own))
    yield from ("rm.type=process", f"rm.step_separator={END}", REWARD_MODEL)
    yield half_each(*parts)
    yield f"trainer.validation.data={write(folder / 'held_out.jsonl', tested)}"


def labelled_samples(scans: list[Row], completions: list[Row]) -> list[Row]:
    """Sampled completions with labelled steps."""
    by_id = {row["id"]: row for row in scans}
    return [
        labelled(by_id[c["id"]], f"{c['mode']}-{c['index']}", c["completion"])
        for c in completions
        if c["completion"].replace(END, "").strip()
    ]


def labelled(row: Row, name: str, completion: str) -> Row:
    """The record with the completion's steps: a thought that names a digit, and an answer.

    A step of the right form with a wrong digit is worth more than one without form. In
    ``process_grpo`` a completion's advantage is the sum over its steps, so with equal labels it
    would be better to have fewer wrong steps, and the policy would forget the form.
    """
    digit = row["answer"]
    steps = [step for step in completion.split(END) if step.strip()]
    labels = [0.0] * len(steps)
    named = [word for word in re.findall("[a-z]+", steps[0]) if word in WORDS]
    if steps[0].startswith("<think>") and len(named) == 1:
        labels[0] = 1.0 if named == [WORDS[int(digit)]] else WRONG_DIGIT
    answer = re.fullmatch(r"<answer>(\d)</answer>", steps[-1].strip())
    if len(steps) == 2 and answer:
        labels[1] = 1.0 if answer[1] == digit else WRONG_DIGIT
    return {**row, "id": f"{row['id']}-{name}", "meta": {"completions": steps, "labels": labels}}


def written_answer(row: Row, wrong: int, rng: random.Random) -> str:
    """A well-formed answer; its thought and its answer name the right digit or a wrong one."""
    thought, answer = (rng.choice((int(row["answer"]), wrong)) for _ in range(2))
    return f"<think>The digit is {WORDS[thought]}.{END}<answer>{answer}</answer>"


def of_completions(folder: Path, pairs: Path, sampled: Path) -> Iterator[str]:
    """Writes the rankings that a reward model learns from, beside the pairs; its settings."""
    valued: dict[str, list[tuple[str, float]]] = {}
    for c in read(sampled):
        valued.setdefault(c["id"], []).append((c["completion"], c["components"]["math"]))
    rankings = [
        {**row, "meta": {"ranking": ranking}}
        for row in read(DATA / "rl.jsonl")
        if len(ranking := best_first(valued[row["id"]])) > 1
    ]
    yield from (REWARD_MODEL, f"trainer.validation.data={pairs / 'pairs-eval.jsonl'}")
    yield half_each(pairs / "pairs-rl.jsonl", write(folder / "rankings.jsonl", rankings))


def half_each(one: Path, other: Path) -> str:
    """The key for training on both files in equal parts."""
    return f"data.train={{{one}: 0.5, {other}: 0.5}}"


def read(path: Path) -> list[Row]:
    return [json.loads(line) for line in path.open()]


def write(path: Path, rows: list[Row]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


if __name__ == "__main__":
    main()
