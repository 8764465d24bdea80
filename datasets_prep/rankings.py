"""Rankings of a model's own completions, for a reward model (``mmr1 rm``)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from datasets_prep.completions import Name, Row, completions_of, text_of, value_of, write_sampled
from datasets_prep.outputs import check_new
from mmr1.data.preferences import best_first

Valued = list[tuple[str, float]]


def write_rankings(
    records: Path, completions: Path, output: Path, function: str
) -> tuple[int, int, int]:
    """Write a record for each prompt whose completions differ in value.

    Its ranking has one completion per value, the best first. Completions without a valid reward
    are left out.

    Args:
        records: The record file that was sampled from, or a folder of them.
        completions: A file of completions, or a folder of them.
        output: The record file to write.
        function: The reward function that ranks.

    Returns:
        How many records were written, from how many of the records, and the number of records.

    Raises:
        ValueError: The output exists, a file cannot be read, a completion was not scored by the
            function, or nothing can be ranked.
    """
    check_new(output)
    valued: dict[Name, Valued] = {}
    for place, name, completion in completions_of(completions):
        value = value_of(completion, function, place)
        if value is not None:
            valued.setdefault(name, []).append((text_of(completion), value))
    return write_sampled(
        records, output, valued, _ranked,
        nothing=f"no prompt of {completions} has completions of different '{function}' and is a "
        f"record of {records}: there is nothing to rank; sample more completions of each, or check "
        "that these records, with these answers, were sampled from",
    )  # fmt: skip


def _ranked(row: Row, valued: Sequence[tuple[str, float]]) -> Iterator[Row]:
    texts = best_first(valued)
    if len(texts) > 1:
        meta: dict[str, Any] = dict(row.get("meta") or {})
        yield {**row, "meta": {**meta, "ranking": texts}}
