"""Demonstrations from a model's own completions: rejection sampling, or a teacher's answers.

The completions are those of ``mmr1 eval`` (``completions.jsonl``) or of a run
(``rollouts/step_*.jsonl``). What is kept is the assistant's answer of a record for ``mmr1 sft``
or ``data.ptx``.
"""

from __future__ import annotations

import json
from array import array
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from datasets_prep.carry import Carrier
from datasets_prep.outputs import check_new, refuse_repeated_ids
from datasets_prep.record_files import record_files, rows_of
from mmr1.data.ids import hash64
from mmr1.data.lines import pieces
from mmr1.data.placeholders import TAG, check_text
from mmr1.data.record import parse_json, read_lines
from mmr1.files import atomic_binary
from mmr1.progress import Progress

# An id, and the answer as JSON: two datasets may have the same ids.
Name = tuple[str, str]


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
    files = record_files(records)
    written = answered = total = 0
    ids: list[array[int]] = [array("Q")]
    with atomic_binary(output) as (file,), Progress("writing", "records") as progress:
        for piece in pieces(files):
            carrier, root = Carrier(output.parent), piece.path.parent
            for _, row, sample in rows_of(piece):
                total += 1
                progress.advance(1)
                texts = kept.get(_name(sample.id, sample.answer), ())
                answered += bool(texts)
                for number, text in enumerate(texts):
                    new = _with_answer(row, text, number if standard.per_record > 1 else None)
                    file.write(carrier.line(new, root))
                    ids[0].append(hash64(new["id"]))
                    written += 1
        if not written:
            raise ValueError(
                f"no completion of {completions} is good enough for a record of {records}: of "
                f"{counts['all']}, {counts['truncated']} are truncated and {counts['unrewarded']} "
                "have no valid reward; lower the threshold, or check that these records, with "
                "these answers, were sampled from"
            )
        refuse_repeated_ids(records, files, ids)
    return written, answered, total


def _with_answer(row: Mapping[str, Any], text: str, number: int | None) -> dict[str, Any]:
    messages = [dict(message) for message in row["messages"]]
    if messages[-1]["role"] == "assistant":
        messages.pop()
    name = row["id"] if number is None else f"{row['id']}-{number}"
    # Copies, because the paths of the media are changed in place.
    media = {kind: list(row[kind]) for kind in ("images", "videos") if row.get(kind)}
    for message in messages:
        if isinstance(message["content"], list):
            message["content"] = [dict(item) for item in message["content"]]
    answer = {"role": "assistant", "content": text}
    return {**row, **media, "id": name, "messages": [*messages, answer]}


def _name(of: str, answer: Any) -> Name:
    return of, json.dumps(answer, sort_keys=True, default=str)


def _kept(completions: Path, standard: Standard) -> tuple[dict[Name, list[str]], Mapping[str, int]]:
    """The good completions of each record, and how many there are of each kind."""
    kept: dict[Name, list[str]] = {}
    counts = {"all": 0, "truncated": 0, "unrewarded": 0}
    for place, name, row in _completions(completions):
        if len(row.get("turns") or ()) > 1:
            raise ValueError(
                f"{place}: a conversation with an environment; its turns cannot be made a "
                "demonstration of one turn"
            )
        counts["all"] += 1
        counts["truncated"] += bool(row["truncated"])
        counts["unrewarded"] += row["reward"] is None
        texts = kept.setdefault(name, [])
        if len(texts) < standard.per_record and _is_good(row, standard, place):
            text = row["text"] if "text" in row else row["completion"]
            if text.strip() and text not in texts and _is_text(text):
                texts.append(text)
    return kept, counts


def _is_text(text: str) -> bool:
    """Does a record read it as it is? Not where it has a placeholder or a token of media."""
    try:
        return not TAG.search(check_text(text))
    except ValueError:
        return False


def _completions(path: Path) -> Iterator[tuple[str, Name, Mapping[str, Any]]]:
    """``(place, name of the record, completion)`` of the rows of an evaluation or of a run.

    Raises:
        ValueError: There is no such file, or a row is neither.
    """
    files = [path] if path.is_file() else sorted(path.glob("*.jsonl"))
    if not files:
        raise ValueError(f"{path} holds no completions (.jsonl)")
    for file in files:
        for number, line in read_lines(file):
            place = f"{file}:{number}"
            try:
                row = parse_json(line)
            except ValueError as error:
                raise ValueError(f"{place}: {error}") from error
            if not isinstance(row, dict) or "id" not in row:
                raise ValueError(
                    f"{place}: no completion of mmr1 eval and no rollout: it has no id"
                )
            name = _name(row["id"], row.get("answer"))
            if "completions" in row:
                yield from ((place, name, completion) for completion in row["completions"])
            elif "completion" in row:
                yield place, name, row
            else:
                raise ValueError(
                    f"{place}: no completion of mmr1 eval and no rollout: it has neither "
                    "'completion' nor 'completions'"
                )


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
    if standard.function not in row["components"]:
        raise ValueError(
            f"{place}: '{standard.function}' is none of its reward functions "
            f"({', '.join(row['components'])})"
        )
    value = row["components"][standard.function]
    return value is not None and value >= standard.at_least
