"""Short ways to make what the rewards take."""

from __future__ import annotations

from typing import Any

from mmr1.rewards import RewardItem
from mmr1.types import MediaRef, Message, Reward, Sample, TextPart


def sample(answer: Any = None, *, task: str | None = None, **meta: Any) -> Sample:
    message = Message("user", (TextPart("How many?"),))
    return Sample(id="s1", messages=(message,), answer=answer, task=task, meta=meta)


def item(completion: str, answer: Any = None, **fields: Any) -> RewardItem:
    """A reward item; ``meta`` and ``task`` go to its sample."""
    meta, task = fields.pop("meta", {}), fields.pop("task", None)
    return RewardItem(completion, sample(answer, task=task, **meta), **fields)


def with_image(base: Sample, size: tuple[int, int]) -> Sample:
    image = MediaRef("image", size=size, data=b"png")
    message = Message("user", (image, TextPart("Where?")))
    return Sample(base.id, (message,), base.answer, base.task, base.source, base.meta)


def think(answer: str) -> str:
    return f"<think>so it is</think>\n<answer>{answer}</answer>"


def value_of(result: Any) -> Any:
    """Return the number of what a reward function returned: a Reward's value, or the number."""
    return result.value if isinstance(result, Reward) else result
