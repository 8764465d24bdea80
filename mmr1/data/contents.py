"""Contents of a dataset in one line: media, text alone, and columns that nothing read."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from mmr1.data.forms.columns import kinds_named, without_media
from mmr1.types import Sample

_SHOWN = 12
"""Columns that are named; of more their number is said."""
_READ = {"options", "choices"}
"""Entries of ``meta`` that rewards read."""


def unread_columns(row: Mapping[str, Any], sample: Sample, columns: Mapping[str, str]) -> list[str]:
    """The columns of a row that no form read, in order.

    Args:
        row: The row.
        sample: Sample that the row was read as; such columns are in its ``meta``.
        columns: The columns that the user named: see :class:`mmr1.config.DataConfig`.
    """
    if "version" in row:  # a record's meta is not a column
        return []
    unread = {name for name in sample.meta if name in row and name not in _READ}
    if columns:
        unread |= row.keys() - without_media(row, kinds_named(columns)).keys()
        unread -= set(columns.values())
    return [name for name in row if name in unread] if unread else []


def contents(
    spec: str, kinds: Iterable[Sequence[str]], unread: Iterable[str], optionless: int
) -> str:
    """A line on how many samples have images, videos or text alone, and columns not read.

    Args:
        spec: The dataset's name.
        kinds: Kinds of the media of each of its samples.
        unread: The columns that no form read.
        optionless: How many are choices without options in their texts and columns.
    """
    counts = Counter(media_class(of_sample) for of_sample in kinds)
    return described(f"{spec}: {counts.total():,} record(s)", counts, unread, optionless)


def described(
    what: str, counts: Mapping[str, int], unread: Iterable[str], optionless: int = 0
) -> str:
    """One line of how many samples are of which class of media, and of columns not read."""
    each = [f"{count:,} {name}" for name, count in sorted(counts.items(), reverse=True)]
    names = list(unread)
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    shown = f"{', '.join(names[:_SHOWN])}{more}"
    left = f"; columns that only rewards may name (no format reads them): {shown}" if names else ""
    if optionless:
        left += (
            f"; the answers of {optionless:,} are letters without options beside them, taken as "
            "choices of what the picture shows (--map options=COLUMN names a column of options)"
        )
    return f"{what}, {', '.join(each)}{left}"


def media_class(kinds: Sequence[str]) -> str:
    """``with images``, ``with images and videos``, ``text only``, … of the kinds of media.

    >>> media_class(["image", "image"]), media_class([])
    ('with images', 'text only')
    """
    names = " and ".join(f"{kind}s" for kind in sorted(set(kinds)))
    return f"with {names}" if names else "text only"
