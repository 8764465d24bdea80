"""Pictures of solids: what the tower learns from, what RL is asked, demonstrations, and a test.

    python scripts/recipes/small_pretrained_vlm/data.py FOLDER SEED SPLIT ...

`align.jsonl` has captions and counts. The problems of RL ask for what a count becomes, and have a
gold answer and nothing else. The demonstrations ask so in other words. The test has the sentences
of RL and other pictures, half of them in a look that no other file has (`meta.look`).
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

import numpy as np

from datasets_prep.generators.common import ask, said
from datasets_prep.generators.counting import arrange
from datasets_prep.generators.solids import OTHER_LOOKS, PLAIN, render
from mmr1.data.record import write_records
from mmr1.types import MediaRef, Sample

SIZES = {"align": 4000, "rl": 256, "demonstrations": 512, "eval": 200}


class Form(NamedTuple):
    """A sentence about n solids of a kind and a number b, and how it is solved."""

    operator: str
    text: str
    solution: str = ""


ASKED = (
    Form("+", "{name} adds {b} {kind}s. How many {kind}s are there then?"),
    Form("-", "{name} takes away {b} {kind}s. How many {kind}s are left?"),
    Form("*", "Each {kind} costs {b} coins. How many coins do all {kind}s cost?"),
)
TAUGHT = (
    Form(
        "+",
        "{b} more {kind}s are put here. What is the number of {kind}s after that?",
        "The picture has {n}, and {n} + {b} = {c}.",
    ),
    Form(
        "-",
        "Without {b} of the {kind}s, what is the number of {kind}s?",
        "The picture has {n}, and {n} - {b} = {c}.",
    ),
    Form(
        "*",
        "{b} pictures are like this one. What is the number of {kind}s in all of them?",
        "The picture has {n}, and {n} * {b} = {c}.",
    ),
)
FORMS = {"rl": ASKED, "demonstrations": TAUGHT, "eval": ASKED}
NAMES = ("Tom", "Anna", "Ben", "Mia", "Leo", "Sara", "Max", "Nina", "Omar", "Eva")


def main(folder: Path, seed: int, splits: list[str]) -> None:
    """Write a file of records for each split of SIZES, and its pictures."""
    (folder / "images").mkdir(parents=True, exist_ok=True)
    for split in splits:
        rng = np.random.default_rng([seed, [*SIZES].index(split)])
        write_records(folder / f"{split}.jsonl", _samples(folder, split, SIZES[split], rng))


def _samples(folder: Path, split: str, size: int, rng: np.random.Generator) -> Iterator[Sample]:
    for number in range(size):
        kind, count, solids = arrange(rng)
        look = "plain"
        if split == "eval" and number % 2:
            look = [*OTHER_LOOKS][number // 2 % len(OTHER_LOOKS)]
        path = folder / "images" / f"{split}-{number:04d}.png"
        picture = render(solids, rng, OTHER_LOOKS.get(look, PLAIN))
        picture.save(path)
        shown = [MediaRef("image", path, size=picture.size)]
        if split == "align":
            question, answer, reply = _aligned(number, kind, count, solids)
        else:
            form = FORMS[split][number % len(FORMS[split])]
            question, answer, reply = _problem(form, kind, count, rng)
        messages = [ask(shown, question), *([said(reply)] if reply else [])]
        meta = {"look": look} if split == "eval" else {}
        yield Sample(f"{split}-{number:04d}", tuple(messages), answer, "math", meta=meta)


def _aligned(
    number: int, kind: str, count: int, solids: Mapping[int, tuple[str, str]]
) -> tuple[str, str, str]:
    """A caption, or the count."""
    if number % 2:
        reply = f"There are {count} {kind}s."
        return f"How many {kind}s are in the picture?", str(count), reply
    shapes = Counter(shape for shape, _ in solids.values())
    parts = [f"{n} {shape}{'s' * (n > 1)}" for shape, n in sorted(shapes.items())]
    return "Describe the picture.", str(len(solids)), f"I see {', '.join(parts)}."


def _problem(form: Form, kind: str, n: int, rng: np.random.Generator) -> tuple[str, str, str]:
    """Question, answer and, of a demonstration, the reply."""
    b = int(rng.integers(0, n + 1) if form.operator == "-" else rng.integers(2, 10))
    c = {"+": n + b, "-": n - b, "*": n * b}[form.operator]
    values = {"name": rng.choice(NAMES), "kind": kind, "n": n, "b": b, "c": c}
    return form.text.format(**values), str(c), form.solution.format(**values)


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3:])
