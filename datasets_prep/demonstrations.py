"""Demonstrations from a model's own completions: rejection sampling, or a teacher's answers.

The completions are those of ``mmr1 eval`` (``completions.jsonl``) or of a run
(``rollouts/step_*.jsonl``). What is kept is the assistant's answer of a record for ``mmr1 sft``
or ``algorithm.ptx.data``. A conversation with tools is kept with their answers, pictures included.
"""

from __future__ import annotations

import base64
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

from datasets_prep.completions import Name, Row, completions_of, text_of, value_of, write_sampled
from datasets_prep.outputs import check_new
from mmr1.data.placeholders import as_text, check_text
from mmr1.types import MediaKind


@dataclass(frozen=True, slots=True)
class Standard:
    """The conditions for a good completion.

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
        standard: Rule for completions that are kept.

    Returns:
        How many records were written, how many of the records have one, and the number of records.

    Raises:
        ValueError: The output exists, a file cannot be read, a row does not say what the standard
            asks for, or no completion is kept.
    """
    check_new(output)
    kept, counts = _kept(completions, standard)

    def answered(row: Row, answers: Sequence[Sequence[Message]]) -> Iterator[Row]:
        for number, answer in enumerate(answers):
            yield with_answer(row, answer, number if standard.per_record > 1 else None)

    return write_sampled(
        records, output, kept, answered,
        nothing=f"no completion of {completions} is good enough for a record of {records}: of "
        f"{counts['all']}, {counts['truncated']} are truncated and {counts['unrewarded']} have no "
        "valid reward; lower the threshold, or check that these records, with these answers, were "
        "sampled from",
    )  # fmt: skip


def with_answer(row: Row, answer: Sequence[Message], number: int | None = None) -> Row:
    """The record with this answer in the place of its own; its id ends in the number."""
    messages = [dict(message) for message in row["messages"]]
    old: list[str] = []
    while messages[-1]["role"] in ("assistant", "tool"):
        old += texts_of([messages.pop()])
    name = row["id"] if number is None else f"{row['id']}-{number}"
    new = {**row, "id": name, "messages": [*messages, *map(embedded, answer)]}
    for kind in get_args(MediaKind):  # those that stand in the old answer
        listed = row.get(f"{kind}s") or []
        if shown := sum(text.count(f"<{kind}>") for text in old):
            new[f"{kind}s"] = listed[: len(listed) - shown]
    return new


def _kept(
    completions: Path, standard: Standard
) -> tuple[dict[Name, list[list[Message]]], Mapping[str, int]]:
    """The good completions of each record, and how many there are of each kind."""
    kept: dict[Name, list[list[Message]]] = {}
    counts = {"all": 0, "truncated": 0, "unrewarded": 0}
    for place, name, row in completions_of(completions, conversations=True):
        counts["all"] += 1
        counts["truncated"] += bool(row["truncated"])
        counts["unrewarded"] += row["reward"] is None
        answers = kept.setdefault(name, [])
        if len(answers) < standard.per_record and _is_good(row, standard, place):
            answer = _answer(row, place)
            written = bool(text_of(row).strip()) and all(map(is_text, texts_of(answer)))
            if written and answer not in answers:
                answers.append(answer)
    return kept, counts


def _answer(row: Mapping[str, Any], place: str) -> list[Message]:
    if len(row.get("turns") or ()) > 1:
        return messages_of(row, place)
    return [{"role": "assistant", "content": as_text(text_of(row))}]


def is_text(text: str) -> bool:
    """True if a record can hold the text: it has no tokens of chat templates or of media."""
    try:
        return check_text(text) == text
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


Message = dict[str, Any]


def messages_of(completion: Mapping[str, Any], place: str) -> list[Message]:
    """The turns of the assistant, and the environment's answers with the role ``tool``.

    Pictures have the paths of their files, which :func:`embedded` reads.

    Raises:
        ValueError: The turns do not say what the environment answered.
    """
    return [message for turn in completion["turns"] for message in _of_turn(turn, place)]


def texts_of(messages: list[Message]) -> list[str]:
    """The texts of all messages."""
    texts = []
    for message in messages:
        content = message["content"]
        parts = [{"text": content}] if isinstance(content, str) else content
        texts += [part["text"] for part in parts if "text" in part]
    return texts


def embedded(message: Message) -> Message:
    """The message with its pictures in it: those of tools have no file in a data set.

    Raises:
        OSError: A file of the run is no longer there.
    """
    content = message["content"]
    if isinstance(content, str):
        return message
    return {**message, "content": [_embedded(part) for part in content]}


def _of_turn(turn: Mapping[str, Any], place: str) -> list[Message]:
    if turn["role"] == "assistant":
        return [{"role": "assistant", "content": as_text(turn["text"])}]
    if not turn.get("answers"):
        raise ValueError(
            f"{place}: its turns do not say how the environment's answers are written: they are of "
            "an evaluation or of an older version, or have the chat template's own tokens in them; "
            "name the rollouts of a run"
        )
    return [
        {"role": "tool", "content": [_part(part, turn["media"]) for part in answer]}
        for answer in turn["answers"]
    ]


def _part(part: Mapping[str, Any], media: list[Mapping[str, Any]]) -> dict[str, Any]:
    if "text" in part:
        return {"type": "text", "text": part["text"]}
    medium = media[part["medium"]]
    return {"type": medium["kind"], "path": medium["path"]}


def _embedded(part: Mapping[str, Any]) -> dict[str, Any]:
    if "path" not in part:
        return dict(part)
    data = base64.b64encode(Path(part["path"]).read_bytes()).decode()
    return {"type": part["type"], "data": data}
