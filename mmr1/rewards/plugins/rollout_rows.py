"""The completions of a run's ``rollouts`` as reward items."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

from mmr1.rewards.item import RewardItem
from mmr1.rewards.plugins.item_rows import read_rows, to_item


def read_items(path: Path) -> Iterator[RewardItem]:
    """The completions in a file or a folder.

    Args:
        path: Rows ``{"completion", "answer", ...}`` as ``mmr1 reward score`` reads them, a rollout
            file of a run, or the directory of a run, of which all rollouts are read.

    Raises:
        ValueError: There is no such file, or a row cannot be read. Names file and line.
    """
    files = [path]
    if path.is_dir():
        files = sorted(path.glob("rollouts/step_*.jsonl")) or sorted(path.glob("step_*.jsonl"))
        if not files:
            raise ValueError(f"{path}: there are no rollouts (rollouts/step_*.jsonl) in it")
    group = 0
    for file in files:
        for row, where in read_rows(file):
            rows = _completions(row, file.parents[1]) if "completions" in row else [row]
            for completion in rows:
                yield to_item({"group": group, **completion}, where)
            group += 1


def _completions(row: Mapping[str, Any], run: Path) -> list[dict[str, Any]]:
    """One row for each completion of a rollout."""
    shared = {
        "id": row["id"],
        "prompt": row["prompt"],
        "question": row.get("question", row["prompt"]),
        "answer": row["answer"],
        "task": row["task"],
        "images": [
            str(file if (file := Path(medium["path"])).is_file() else run / file)
            for medium in row.get("media", [])
            if medium["kind"] == "image"
        ],
    }
    return [
        {**shared, "completion": c["text"], "truncated": c["truncated"], **_conversation(c)}
        for c in row["completions"]
    ]


def _conversation(completion: Mapping[str, Any]) -> dict[str, Any]:
    """What a reward function is told of a conversation with an environment; nothing without one."""
    if "turns" not in completion:
        return {}
    messages = []
    for turn in completion["turns"]:
        message = {"role": turn["role"], "content": turn["text"]}
        shown = [medium["digest"] for medium in turn["media"]]
        messages.append({**message, "images": shown} if shown else message)
    calls = [call for turn in completion["turns"] for call in turn["calls"]]
    return {"messages": messages, "tool_calls": calls}


def batches_of_groups(items: Sequence[RewardItem], size: int) -> Iterator[list[RewardItem]]:
    """Lists of at least ``size`` items, and of whole groups."""
    batch: list[RewardItem] = []
    for _, group in groupby(items, key=lambda item: item.group):
        batch += group
        if len(batch) >= size:
            yield batch
            batch = []
    if batch:
        yield batch
