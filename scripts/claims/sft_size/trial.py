"""RL after SFT on few demonstrations and on many."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

from scripts.claims.claim import Measured, Trial
from scripts.claims.start.start import Row, read, write
from scripts.claims.tasks import WORDS
from scripts.claims.training import evaluated, measured, taught, train

RL, SFT = (Path(__file__).with_name(f"{name}.yaml") for name in ("rl", "sft"))
MANY = "120 demonstrations"
EACH = {"10 demonstrations": 2, "30 demonstrations": 6, MANY: 24}
"""Demonstrations of each digit."""


def run(trial: Trial) -> Measured:
    data = split(trial.start, trial.folder.parent / "data")
    pool, media = read(data / "sft.jsonl"), trial.start / "data"
    records = trial.folder / "sft.jsonl"
    if not records.is_file():
        trial.folder.mkdir(parents=True, exist_ok=True)
        write(records, first_of_each(pool, EACH[trial.arm]))
    untrained = trial.start / "model"
    model = taught(SFT, trial.folder / "sft", untrained, records, media, trial)
    before = evaluated(trial, RL, model, trial.folder / "before")
    train(trial, RL, (f"data.train={data / 'rl.jsonl'}",), model)
    after = measured(trial.folder / "run")
    gains = {f"{k}_gain": after.numbers[k] - before[k] for k in ("greedy", "sampled")}
    earlier = {f"{k}_before": before[k] for k in ("greedy", "sampled")}
    return replace(after, numbers={**after.numbers, **earlier, **gains})


def split(start: Path, folder: Path) -> Path:
    """``sft.jsonl`` with 24 demonstrations of each digit, and ``rl.jsonl`` with the other scans."""
    if not (folder / "rl.jsonl").is_file():
        folder.mkdir(parents=True, exist_ok=True)
        shown, others = read(start / "sft.jsonl"), read(start / "rl.jsonl")
        pool = list(first_of_each([*shown, *map(demonstrated, others)], EACH[MANY]))
        taken = {row["id"] for row in pool}
        write(folder / "sft.jsonl", pool)
        write(folder / "rl.jsonl", [row for row in others if row["id"] not in taken])
    return folder


def demonstrated(row: Row) -> Row:
    """With the thought and answer that a demonstration of the same digit has."""
    digit = int(row["answer"])
    text = f"<think>The digit is {WORDS[digit]}.</think><answer>{digit}</answer>"
    return {**row, "messages": [*row["messages"], {"role": "assistant", "content": text}]}


def first_of_each(rows: Iterable[Row], count: int) -> Iterable[Row]:
    seen: dict[str, int] = defaultdict(int)
    for row in rows:
        seen[row["answer"]] += 1
        if seen[row["answer"]] <= count:
            yield row
