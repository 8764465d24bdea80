"""Rows of ``mmr1 reward score`` and of the reward server <-> reward items."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from mmr1.rewards.item import RewardItem
from mmr1.rewards.plugins.columns import ROW
from mmr1.types import MediaRef, Message, Reward, Sample, TextPart

_ITEM_COLUMNS = {
    "completion", "answer", "id", "task", "source", "question", "prompt", "token_ids", "truncated",
    "group", "media_sizes", "image_grid_thw", "shuffled", "images", "original_sizes", "messages",
    "tool_calls", "environment_reward",
}  # fmt: skip
_GROUPED_BY = ("group", "id", "prompt", "question")


def to_item(row: Mapping[str, Any], where: str) -> RewardItem:
    """The item of a row ``{"completion", "answer", ...}``.

    ``id``, ``task``, ``source``, ``question``, ``prompt``, ``token_ids``, ``truncated``,
    ``group``, ``images`` (paths), ``original_sizes`` and ``media_sizes`` (``[width, height]``
    each), ``image_grid_thw``, ``shuffled``, ``messages``, ``tool_calls`` and
    ``environment_reward`` are read by these names. Every other column goes to ``sample.meta``. A
    row whose prompt and completion are texts gives texts to a function of TRL's form.

    Args:
        row: A parsed row.
        where: File and line, for messages; also the id of a row without one.

    Raises:
        ValueError: If the row has no completion, or one of these columns has the wrong type.
    """
    completion = row.get("completion")
    meta = {k: v for k, v in row.items() if k not in _ITEM_COLUMNS}
    is_text = isinstance(completion, str) and isinstance(row.get("prompt"), str)
    if isinstance(completion, list) and completion and isinstance(completion[-1], dict):
        completion = completion[-1].get("content")
    if not isinstance(completion, str):
        raise ValueError(f"{where}: a row needs 'completion', a string")
    try:
        if is_text:
            meta[ROW] = {**meta.get(ROW, {}), "prompt": row["prompt"]}
        sample = Sample(
            id=str(row.get("id", where)),
            messages=(Message("user", (*_media(row), TextPart(str(row.get("question", ""))))),),
            answer=row.get("answer"),
            task=_text(row, "task"),
            source=_text(row, "source"),
            meta=meta,
        )
        return RewardItem(
            completion,
            sample,
            prompt=str(row.get("prompt") or ""),
            token_ids=tuple(row.get("token_ids") or ()),
            truncated=bool(row.get("truncated", False)),
            group=int(row.get("group", 0)),
            media_sizes=_tuples(row.get("media_sizes")),
            grid_thw=_tuples(row.get("image_grid_thw")),
            shuffled=tuple(row.get("shuffled") or ()),
            messages=tuple(row.get("messages") or ()),
            tool_calls=tuple(row.get("tool_calls") or ()),
            environment_reward=row.get("environment_reward"),
        )
    except (TypeError, ValueError) as error:
        raise ValueError(f"{where}: {error}") from error


def with_groups(rows: Iterable[Mapping[str, Any]]) -> Iterator[Mapping[str, Any]]:
    """Number the groups: rows of the same ``group``, else id, else prompt, else question are one.

    A ``group`` may be a number or a text. A row that has none of the four is alone.
    """
    numbers: dict[Any, int] = {}
    for index, row in enumerate(rows):
        named = next((name for name in _GROUPED_BY if row.get(name) is not None), None)
        key = index if named is None else (named, repr(row[named]))
        yield {**row, "group": numbers.setdefault(key, len(numbers))}


def _media(row: Mapping[str, Any]) -> list[MediaRef]:
    images, sizes = row.get("images") or [], _tuples(row.get("original_sizes"))
    images = [images] if isinstance(images, str) else images
    if not isinstance(images, list | tuple):
        raise ValueError("'images' is not a list of paths")
    count = max(len(images), len(sizes))
    return [
        MediaRef(
            "image",
            path=Path(images[i]) if i < len(images) else None,
            data=None if i < len(images) else b"",
            size=sizes[i] if i < len(sizes) else None,
        )
        for i in range(count)
    ]


def _text(row: Mapping[str, Any], name: str) -> str | None:
    value = row.get(name)
    if value is None or isinstance(value, str):
        return value
    raise ValueError(f"{name!r} is not a string")


def _tuples(value: Any) -> tuple[Any, ...]:
    """A list of lists of numbers as tuples; a flat list counts as one of them."""
    if not value:
        return ()
    if not isinstance(value, list | tuple):
        raise ValueError(f"{str(value)[:80]!r} is not a list of sizes")
    if not isinstance(value[0], list | tuple):
        value = [value]
    return tuple(tuple(int(number) for number in numbers) for numbers in value)


def read_rows(path: Path) -> Iterator[tuple[dict[str, Any], str]]:
    """The rows of a JSONL file, each with its ``file:line``.

    Raises:
        ValueError: The file is missing or a line is not a JSON object.
    """
    if not path.is_file():
        raise ValueError(f"{path}: no such file")
    with path.open("rb") as lines:
        for number, line in enumerate(lines, start=1):
            if not line.strip():
                continue
            try:
                row = json.loads(line)
            except (ValueError, RecursionError) as error:
                raise ValueError(f"{path}:{number}: not valid JSON: {error}") from error
            if not isinstance(row, dict):
                raise ValueError(f"{path}:{number}: a row is a JSON object")
            yield row, f"{path}:{number}"


def scored_row(row: Mapping[str, Any], reward: Reward) -> dict[str, Any]:
    """The row and its reward."""
    return {
        **row,
        "reward": reward.value,
        "components": dict(reward.components),
        "status": reward.status.value,
        "error": reward.error,
    }


def batches_of_groups(items: Sequence[RewardItem], size: int) -> Iterator[list[int]]:
    """Yield the indices of at least ``size`` items, of whole groups, wherever their rows stand."""
    groups: dict[int, list[int]] = {}
    for index, item in enumerate(items):
        groups.setdefault(item.group, []).append(index)
    batch: list[int] = []
    for indices in groups.values():
        batch += indices
        if len(batch) >= size:
            yield batch
            batch = []
    if batch:
        yield batch
