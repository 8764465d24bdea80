"""The checks of one record: what a training run and its reward functions need of it."""

from __future__ import annotations

from datasets_prep.finish import check_gold, check_media
from mmr1.types import Sample


def check_sample(sample: Sample) -> None:
    """Raises ValueError for media that do not decode, a wrong size or an unreadable gold."""
    if not any(m.role == "user" for m in sample.messages):
        raise ValueError("no user message")
    for ref in sample.media:
        size = check_media(ref)
        if ref.size is not None and tuple(ref.size) != size:
            raise ValueError(f"{ref}: the record states {ref.size}, it is {size}")
    check_gold(sample)
