"""Few demonstrations of the digits, and many."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path

from scripts.claims.start.start import Row, read
from scripts.claims.tasks import WORDS, Splits

EACH = {"sft_10": 2, "sft_30": 6, "sft_120": 24}
"""Demonstrations of each digit."""


def build(start: Path, seed: int, folder: Path) -> Splits:
    """10, 30 and 120 demonstrations, the fewer being among the more."""
    shown, others = read(start / "sft.jsonl"), read(start / "rl.jsonl")
    pool = [*shown, *map(demonstrated, others)]
    return {name: list(first_of_each(pool, count)) for name, count in EACH.items()}


def demonstrated(row: Row) -> Row:
    """The row with the thought and answer of a demonstration of the same digit."""
    digit = int(row["answer"])
    text = f"<think>The digit is {WORDS[digit]}.</think><answer>{digit}</answer>"
    return {**row, "messages": [*row["messages"], {"role": "assistant", "content": text}]}


def first_of_each(rows: Iterable[Row], count: int) -> Iterable[Row]:
    """The first rows of each answer."""
    seen: dict[str, int] = defaultdict(int)
    for row in rows:
        seen[row["answer"]] += 1
        if seen[row["answer"]] <= count:
            yield row
