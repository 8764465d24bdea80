"""Demonstrations whose length is free: each says its thought one to four times."""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from scripts.claims.start.start import read
from scripts.claims.tasks import Splits

SENTENCES = 4


def build(start: Path, seed: int, folder: Path) -> Splits:
    """The demonstrations of the start, lengthened."""
    return {"sft": list(lengthened(read(start / "sft.jsonl"), random.Random(seed)))}


def lengthened(rows: Iterable[dict[str, Any]], rng: random.Random) -> Iterator[dict[str, Any]]:
    """The demonstrations, with up to :data:`SENTENCES` times their thought, whatever the digit."""
    for row in rows:
        *question, answer = row["messages"]
        thought, rest = said(answer).removeprefix("<think>").split("</think>")
        repeated = " ".join([thought] * rng.randint(1, SENTENCES))
        text = f"<think>{repeated}</think>{rest}"
        yield {**row, "messages": [*question, {"role": "assistant", "content": text}]}


def said(message: dict[str, Any]) -> str:
    content = message["content"]
    return content if isinstance(content, str) else "".join(part["text"] for part in content)
