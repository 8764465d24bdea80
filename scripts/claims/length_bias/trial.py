"""Length of wrong answers under three aggregations of the loss, where length is free."""

from __future__ import annotations

import json
import random
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from statistics import fmean
from typing import Any

from scripts.claims.claim import Measured, Trial
from scripts.claims.start.start import read, write
from scripts.claims.training import measured, taught, train

RL, SFT = (Path(__file__).with_name(f"{name}.yaml") for name in ("rl", "sft"))
SENTENCES = 4


def run(trial: Trial) -> Measured:
    train(trial, RL, trial.overrides, cold_start(trial))
    folder = trial.folder / "run"
    found = measured(folder, "completion/length_mean")
    rows = map(json.loads, (folder / "eval/completions.jsonl").open())
    return replace(found, numbers={**found.numbers, **lengths(rows)})


def cold_start(trial: Trial) -> Path:
    """Shared by the arms of a seed."""
    folder = trial.folder.parent
    records = folder / "sft.jsonl"
    if not records.is_file():
        folder.mkdir(parents=True, exist_ok=True)
        write(records, lengthened(read(trial.start / "sft.jsonl"), random.Random(trial.seed)))
    return taught(SFT, folder / "sft", trial.start / "model", records, trial.start / "data", trial)


def lengthened(rows: Iterable[dict[str, Any]], rng: random.Random) -> Iterator[dict[str, Any]]:
    """Each demonstration says its thought up to :data:`SENTENCES` times, whatever the digit."""
    for row in rows:
        *question, answer = row["messages"]
        thought, rest = said(answer).removeprefix("<think>").split("</think>")
        repeated = " ".join([thought] * rng.randint(1, SENTENCES))
        text = f"<think>{repeated}</think>{rest}"
        yield {**row, "messages": [*question, {"role": "assistant", "content": text}]}


def said(message: dict[str, Any]) -> str:
    content = message["content"]
    return content if isinstance(content, str) else "".join(part["text"] for part in content)


def lengths(rows: Iterable[dict[str, Any]]) -> dict[str, float]:
    """Mean tokens of the sampled completions that are right, and of those that are wrong."""
    sampled = [row for row in rows if row["mode"] == "sampled"]
    kinds = {
        name: [row["tokens"] for row in sampled if row["right"] is right]
        for name, right in (("right_length", True), ("wrong_length", False))
    }
    return {name: fmean(tokens) for name, tokens in kinds.items() if tokens}
