"""Products that a small model cannot work out, and a calculator can."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np

from datasets_prep.generators import Generator
from datasets_prep.generators.common import ask, said, sample, tool_call
from mmr1.environments.toolbox import calculate
from mmr1.types import Message, Sample, TextPart

SIZES = {"sft": 120, "rl": 1500, "eval": 300}
"""Products of each split; no product is in two of them."""
GUESSES, READINGS = 2, 2
"""For each demonstration that calls: how many answer at once, and how many read a number."""


def products() -> list[tuple[int, int]]:
    """Pairs of numbers of two digits whose product has four."""
    return [(a, b) for a in range(10, 100) for b in range(10, 100) if a * b >= 1000]


def build(folder: Path, seed: int) -> Mapping[str, Sequence[Sample]]:
    """A product of the demonstrations is calculated, answered at once, and read."""
    rng = np.random.default_rng(seed)
    drawn = [products()[i] for i in rng.permutation(len(products()))]

    def asked(pair: tuple[int, int]) -> Sample:
        a, b = pair
        messages = [ask([], f"What is {a}*{b}?")]
        return sample(f"calculate-{a}-{b}", messages, str(a * b), "math", "calculate")

    def demonstrations(pair: tuple[int, int]) -> Iterator[Sample]:
        expression, question = "{}*{}".format(*pair), asked(pair)
        shown = calculate(expression)
        answer = said(f"<answer>{shown}</answer>")
        call = said(tool_call("calculate", expression=expression))
        told = Message("tool", (TextPart(shown),))
        ways = {
            "call": (1, [*question.messages, call, told, answer]),
            "guess": (GUESSES, [*question.messages, answer]),
            "read": (READINGS, [ask([], f"What is {shown}?"), answer]),
        }
        for way, (count, messages) in ways.items():
            for number in range(count):
                name = f"{question.id}-{way}-{number}"
                yield sample(name, messages, shown, "math", "calculate")

    ends = np.cumsum([0, *SIZES.values()])
    of = {s: drawn[a:b] for s, a, b in zip(SIZES, ends[:-1], ends[1:], strict=True)}
    return {
        "sft": [shown for pair in of["sft"] for shown in demonstrations(pair)],
        "rl": [asked(pair) for pair in of["rl"]],
        "eval": [asked(pair) for pair in of["eval"]],
    }


CALCULATE = Generator(
    name="calculate",
    description="products of two numbers, which a small model needs the tool calculate for",
    source="drawn by mmr1",
    licence="Apache-2.0",
    build=build,
)
