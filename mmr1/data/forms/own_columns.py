"""What a row of another project had, under its own names, for that project's reward functions."""

from __future__ import annotations

from typing import Any

from mmr1.data.forms.assemble import other_columns
from mmr1.data.forms.columns import is_media_column
from mmr1.data.forms.form import Row
from mmr1.rewards.plugins.columns import ROW
from mmr1.types import Sample

_CONVERSATIONS = (
    "prompt", "messages", "message", "conversations", "history", "query", "response", "completion",
    "process",
)  # fmt: skip
"""What a reward function gets from the sample itself: the prompt, and a demonstration."""


def with_own_columns(sample: Sample, row: Row) -> Sample:
    """The sample with those columns of its row in ``meta.row`` that ``meta`` does not have as such.

    Without the conversation and its media. A form may have put columns there that the project's own
    loader makes; the row's own win.
    """
    kept: dict[str, Any] = {
        name: value
        for name, value in row.items()
        if name not in _CONVERSATIONS
        and not is_media_column(name)
        and not (name in sample.meta and sample.meta[name] is value)
    }
    made = {name: value for name, value in sample.meta.get(ROW, {}).items() if name not in row}
    own = {**made, **other_columns(kept, ())}
    if "id" in kept and "source_id" in own:
        own["id"] = own.pop("source_id")
    if not own:
        return sample
    meta = {**sample.meta, ROW: own}
    return Sample(sample.id, sample.messages, sample.answer, sample.task, sample.source, meta)
