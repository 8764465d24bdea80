"""Completions sampled for the records of a dataset, and records made of them.

Completions are those of ``mmr1 eval`` (``completions.jsonl``) or of a run
(``rollouts/step_*.jsonl``).
"""

from __future__ import annotations

import copy
import json
from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar

from datasets_prep.carry import Carrier
from datasets_prep.outputs import opened, refuse_repeated_ids
from datasets_prep.record_files import record_files, rows_of
from mmr1.data.ids import hash64
from mmr1.data.lines import pieces
from mmr1.data.record import parse_json, read_lines
from mmr1.progress import Progress

# An id, and the answer as JSON: two datasets may have the same ids.
Name = tuple[str, str]
Row = dict[str, Any]
T = TypeVar("T")


def completions_of(
    path: Path, conversations: bool = False
) -> Iterator[tuple[str, Name, Mapping[str, Any]]]:
    """``(place, name of the record, completion)`` of the rows of an evaluation or of a run.

    Args:
        path: A file of completions, or a folder of them.
        conversations: Whether rows with an environment are read, too; the paths of their images are
            whole.

    Raises:
        ValueError: If the file is missing, a row is neither, or a row is a conversation with an
            environment and these are not asked for.
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
            for completion in _completions(row, place):
                if len(completion.get("turns") or ()) > 1:
                    if not conversations:
                        raise ValueError(
                            f"{place}: a conversation with an environment; its turns cannot be "
                            "made a record of one turn"
                        )
                    completion = _with_whole_paths(completion, file.parent.parent)
                yield place, _name(row["id"], row.get("answer")), completion


def _completions(row: Any, place: str) -> Iterable[Mapping[str, Any]]:
    if not isinstance(row, dict) or "id" not in row:
        raise ValueError(f"{place}: neither a completion of mmr1 eval nor a rollout: it has no id")
    if "completions" in row:
        return row["completions"]
    if "completion" in row:
        return (row,)
    raise ValueError(
        f"{place}: neither a completion of mmr1 eval nor a rollout: it has neither "
        "'completion' nor 'completions'"
    )


def _with_whole_paths(completion: Mapping[str, Any], run: Path) -> Mapping[str, Any]:
    turns = [
        {**turn, "media": [{**m, "path": str(run / m["path"])} for m in turn.get("media") or ()]}
        for turn in completion["turns"]
    ]
    return {**completion, "turns": turns}


def text_of(completion: Mapping[str, Any]) -> str:
    """The text of a completion, which runs and evaluations name differently."""
    return completion["text"] if "text" in completion else completion["completion"]


def value_of(completion: Mapping[str, Any], function: str, place: str) -> float | None:
    """Return the value of a reward function; None where it gave no valid reward.

    Raises:
        ValueError: If the completion was not scored by that function.
    """
    if function not in completion["components"]:
        raise ValueError(
            f"{place}: '{function}' is none of its reward functions "
            f"({', '.join(completion['components'])})"
        )
    return completion["components"][function]


def write_sampled(
    records: Path,
    output: Path,
    sampled: Mapping[Name, T],
    rows: Callable[[Row, T], Iterator[Row]],
    *,
    nothing: str,
) -> tuple[int, int, int]:
    """Write the records that ``rows`` makes of each record with completions.

    Args:
        records: The record file that was sampled from, or a folder of them.
        output: The record file to write. Media stay where they are, or are linked into its folder.
        sampled: Completions and verdicts of each record.
        rows: Makes rows of a record, which it may not change, and what is known of it.
        nothing: Message if it makes none at all.

    Returns:
        How many records were written, from how many of the records, and the number of records.

    Raises:
        ValueError: A file cannot be read, there is nothing to write, or two of the written records
            have one id.
    """
    files = record_files(records)
    written = used = total = 0
    ids: list[array[int]] = [array("Q")]
    with opened(output) as file, Progress("writing", "records") as progress:
        for piece in pieces(files):
            carrier, root = Carrier(output.parent), piece.path.parent
            for _, row, sample in rows_of(piece):
                total += 1
                progress.advance(1)
                known = sampled.get(_name(sample.id, sample.answer))
                before = written
                for new in () if known is None else rows(row, known):
                    # A copy, because the paths of its media are changed in place.
                    file.write(carrier.line(copy.deepcopy(new), root))
                    ids[0].append(hash64(new["id"]))
                    written += 1
                used += written > before
        if not written:
            raise ValueError(nothing)
        refuse_repeated_ids(records, files, ids)
    return written, used, total


def _name(of: str, answer: Any) -> Name:
    return of, json.dumps(answer, sort_keys=True, default=str)
