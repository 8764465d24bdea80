"""Demonstrations from a model's own completions: rejection sampling, or a teacher's answers.

The completions are those of ``mmr1 eval`` (``completions.jsonl``) or of a run
(``rollouts/step_*.jsonl``). What is kept is the assistant's answer of a record for ``mmr1 sft``
or ``data.ptx``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from datasets_prep.completions import Name, Row, completions_of, text_of, value_of, write_sampled
from datasets_prep.outputs import check_new
from mmr1.data.placeholders import TAG, check_text


@dataclass(frozen=True, slots=True)
class Standard:
    """Which completions are good enough.

    Attributes:
        function: The reward function that decides; None: what ``mmr1 eval`` calls right.
        at_least: Its lowest value.
        per_record: Most answers to one record, of different texts.
    """

    function: str | None = None
    at_least: float = 1.0
    per_record: int = 1


def write_demonstrations(
    records: Path, completions: Path, output: Path, standard: Standard
) -> tuple[int, int, int]:
    """Write a record for each completion that is kept, with the completion as its answer.

    Truncated completions and those without a valid reward are never kept. Of a record with several
    good ones the first are. A record that has an answer of the assistant gets the new one in its
    place.

    Args:
        records: The record file that was sampled from, or a folder of them.
        completions: A file of completions, or a folder of them.
        output: The record file to write.
        standard: Which completions are kept.

    Returns:
        How many records were written, how many of the records have one, and the number of records.

    Raises:
        ValueError: The output exists, a file cannot be read, a row does not say what the standard
            asks for, or no completion is kept.
    """
    check_new(output)
    kept, counts = _kept(completions, standard)

    def answered(row: Row, texts: Sequence[str]) -> Iterator[Row]:
        for number, text in enumerate(texts):
            yield _with_answer(row, text, number if standard.per_record > 1 else None)

    return write_sampled(
        records, output, kept, answered,
        nothing=f"no completion of {completions} is good enough for a record of {records}: of "
        f"{counts['all']}, {counts['truncated']} are truncated and {counts['unrewarded']} have no "
        "valid reward; lower the threshold, or check that these records, with these answers, were "
        "sampled from",
    )  # fmt: skip


def _with_answer(row: Row, text: str, number: int | None) -> Row:
    messages = [dict(message) for message in row["messages"]]
    if messages[-1]["role"] == "assistant":
        messages.pop()
    name = row["id"] if number is None else f"{row['id']}-{number}"
    answer = {"role": "assistant", "content": text}
    return {**row, "id": name, "messages": [*messages, answer]}


def _kept(completions: Path, standard: Standard) -> tuple[dict[Name, list[str]], Mapping[str, int]]:
    """The good completions of each record, and how many there are of each kind."""
    kept: dict[Name, list[str]] = {}
    counts = {"all": 0, "truncated": 0, "unrewarded": 0}
    for place, name, row in completions_of(completions):
        counts["all"] += 1
        counts["truncated"] += bool(row["truncated"])
        counts["unrewarded"] += row["reward"] is None
        texts = kept.setdefault(name, [])
        if len(texts) < standard.per_record and _is_good(row, standard, place):
            text = text_of(row)
            if text.strip() and text not in texts and _is_text(text):
                texts.append(text)
    return kept, counts


def _is_text(text: str) -> bool:
    """Does a record read it as it is? Not where it has a placeholder or a token of media."""
    try:
        return not TAG.search(check_text(text))
    except ValueError:
        return False


def _is_good(row: Mapping[str, Any], standard: Standard, place: str) -> bool:
    if row["truncated"] or row["reward"] is None:
        return False
    if standard.function is None:
        if "right" not in row:
            raise ValueError(
                f"{place}: a rollout does not say what is right; name the reward function that "
                f"decides, with --function (one of {', '.join(row['components'])})"
            )
        return bool(row["right"])
    value = value_of(row, standard.function, place)
    return value is not None and value >= standard.at_least
