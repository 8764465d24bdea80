"""What a row of another project had, under its own names, for that project's reward functions."""

from __future__ import annotations

from functools import lru_cache

from mmr1.data.forms.assemble import is_json
from mmr1.data.forms.columns import is_media_column
from mmr1.data.forms.form import Row
from mmr1.rewards.plugins.columns import ROW
from mmr1.types import Sample

_CONVERSATIONS = frozenset((
    "prompt", "messages", "message", "conversations", "history", "query", "response", "completion",
    "process",
))  # fmt: skip
"""What a reward function gets from the sample itself: the prompt, and a demonstration."""


def with_own_columns(sample: Sample, row: Row) -> Sample:
    """The sample with those columns of its row in ``meta.row`` that ``meta`` does not have as such.

    Without the conversation and its media. A form may have put columns there that the project's own
    loader makes; the row's own win.
    """
    meta = sample.meta
    made = meta.get(ROW)
    own = {name: value for name, value in made.items() if name not in row} if made else {}
    for name, value in row.items():
        if value is None or value == "" or value == [] or _is_of_sample(name):
            continue
        if meta.get(name) is not value and is_json(value):
            own[name] = value
    if not own:
        return sample
    return Sample(
        sample.id, sample.messages, sample.answer, sample.task, sample.source, {**meta, ROW: own}
    )


@lru_cache(maxsize=1 << 12)
def _is_of_sample(name: str) -> bool:
    """Whether the sample itself has what is in a column of this name."""
    return name in _CONVERSATIONS or is_media_column(name)
