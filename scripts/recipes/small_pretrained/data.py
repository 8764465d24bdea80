"""Word problems with one step: what RL is asked, demonstrations in other words, and a test.

    python scripts/recipes/small_pretrained/data.py FOLDER SEED

No numbers of the test are in another file. Half of it has the sentences of RL (`meta.words` is
`asked`), half has sentences that are in no other file (`new`). The demonstrations have their own.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np

from mmr1.data.record import write_records
from mmr1.types import Message, Sample, TextPart

NAMES = ("Tom", "Anna", "Ben", "Mia", "Leo", "Sara", "Max", "Nina", "Omar", "Eva")
THINGS = ("apples", "books", "coins", "stickers", "marbles", "pencils", "shells", "cards", "eggs")
SIZES = {"rl": 256, "demonstrations": 512, "eval": 200}


class Form(NamedTuple):
    """A sentence with the names NAME and THINGS and the numbers a and b, and how it is solved."""

    operator: str
    text: str
    solution: str = ""


ASKED = (
    Form(
        "+", "{name} has {a} {things} and finds {b} more. How many {things} does {name} have now?"
    ),
    Form(
        "-", "{name} has {a} {things} and gives away {b}. How many {things} does {name} have left?"
    ),
    Form(
        "*", "{name} has {a} boxes with {b} {things} in each. How many {things} does {name} have?"
    ),
    Form(
        "/", "{name} shares {a} {things} equally among {b} friends. How many does each friend get?"
    ),
)
TAUGHT = (
    Form(
        "+",
        "On Monday {name} buys {a} {things}, on Tuesday {b}. How many {things} are that?",
        "On both days together that is {a} + {b} = {c} {things}.",
    ),
    Form(
        "-",
        "There are {a} {things} on a table. {name} takes {b} of them. How many {things} remain?",
        "Without those that {name} takes there are {a} - {b} = {c} {things}.",
    ),
    Form(
        "*",
        "{name} buys {a} packs. A pack holds {b} {things}. How many {things} does {name} buy?",
        "The packs hold {a} * {b} = {c} {things}.",
    ),
    Form(
        "/",
        "{name} puts {a} {things} into {b} equal rows. How many {things} are in a row?",
        "A row has {a} / {b} = {c} {things}.",
    ),
)
NEW = (
    Form("+", "A shop sells {a} {things} before noon and {b} after it. How many does it sell?"),
    Form("-", "{name} needs {a} {things} and has {b}. How many {things} are missing?"),
    Form("*", "Each of {a} children brings {b} {things}. How many {things} do they bring?"),
    Form("/", "{a} {things} fill {b} jars. Each jar holds as many. How many are in one jar?"),
)
FORMS = {"rl": ASKED, "demonstrations": TAUGHT, "eval": ASKED + NEW}


def main(folder: Path, seed: int) -> None:
    """Write a file of records for each of SIZES."""
    folder.mkdir(parents=True, exist_ok=True)
    for number, (split, size) in enumerate(SIZES.items()):
        rng = np.random.default_rng([seed, number])
        write_records(folder / f"{split}.jsonl", _problems(split, size, rng))


def _problems(split: str, size: int, rng: np.random.Generator) -> Iterator[Sample]:
    forms = FORMS[split]
    for number in range(size):
        form = forms[number % len(forms)]
        a, b, c = _numbers(form.operator, rng, held_out=split == "eval")
        name, things = rng.choice(NAMES), rng.choice(THINGS)
        values = {"name": name, "things": things, "a": a, "b": b, "c": c}
        messages = [Message("user", (TextPart(form.text.format(**values)),))]
        if form.solution:
            messages.append(Message("assistant", (TextPart(form.solution.format(**values)),)))
        meta = {"words": "new" if form in NEW else "asked"} if split == "eval" else {}
        yield Sample(f"{split}-{number:04d}", tuple(messages), str(c), "math", meta=meta)


def _numbers(operator: str, rng: np.random.Generator, *, held_out: bool) -> tuple[int, int, int]:
    """a, b and the result; a fifth of all pairs are held out."""
    while True:
        a, b = (int(n) for n in rng.integers(2, 21 if operator in "+-" else 10, size=2))
        if ((3 * a + b) % 5 == 0) == held_out:
            break
    match operator:
        case "+":
            return a, b, a + b
        case "-":
            return a + b, b, a
        case "*":
            return a, b, a * b
        case _:
            return a * b, b, a


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
