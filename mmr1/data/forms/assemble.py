"""Build a ``Sample`` from the values of a row, whatever format the row has."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from mmr1.data.forms.columns import OPTIONS, is_media_column
from mmr1.data.forms.form import Place, Row, Turns
from mmr1.data.forms.options import Options, options_of, read_options
from mmr1.data.forms.unread import refuse_unread
from mmr1.data.media_values import media_refs
from mmr1.data.placeholders import fill, literal, prepend
from mmr1.rewards.kind import reward_of_task
from mmr1.rewards.plugins.columns import ROW
from mmr1.types import Sample


def assemble(
    row: Row,
    place: Place,
    turns: Turns,
    *,
    images: Any = None,
    videos: Any = None,
    answer: Any = None,
    task: str | None = None,
    used: Sequence[str] = (),
    untagged: bool = False,
    meta: Mapping[str, Any] | None = None,
) -> Sample:
    """Build a sample from the values of a row.

    Args:
        row: Its unused columns go to ``meta``.
        place: Place of the row, for the id and the media root.
        turns: ``(role, text with tags)`` of each message.
        images: The value of the image column, in the order of the tags.
        videos: The value of the video column.
        answer: Gold answer.
        task: Task type, unless the row has a column ``task`` with one that is known.
        used: Columns that do not go to ``meta``.
        untagged: Put the media before the question if the text has no tags.
        meta: More entries of ``meta``.

    Raises:
        ValueError: A text is none, there is no question, or the media cannot be used. Or a column
            holds media that are not among them.
    """
    _check_texts(row, turns)
    image_refs = media_refs("image", images, place.root)
    video_refs = media_refs("video", videos, place.root)
    refs = [*image_refs, *video_refs]
    refuse_unread(row, used, refs, (images, videos), place.root)
    if untagged and refs:
        turns = prepend(turns, len(image_refs), len(video_refs))
    if not any(role == "user" and text.strip() for role, text in turns):
        raise ValueError("no question: the user's messages are empty")
    stated = stated_task(row)
    return Sample(
        id=f"{place.source}-{place.index:06d}",
        messages=fill(turns, image_refs, video_refs),
        answer=answer,
        task=stated or task,
        source=place.source,
        meta={**other_columns(row, (*used, "task") if stated else used), **(meta or {})},
    )


def stated_task(row: Row) -> str | None:
    """The task type in the column ``task``, or None if there is none that a reward knows."""
    task = row.get("task")
    return task if isinstance(task, str) and reward_of_task(task) is not None else None


def _check_texts(row: Row, turns: Turns) -> None:
    for role, text in turns:
        if not isinstance(text, str):
            raise ValueError(f"the {role}'s message is {type(text).__name__}, not a text")


def is_json(value: Any) -> bool:
    """True for values that a record can hold: not for bytes, arrays and NaN."""
    kind = type(value)
    if kind is str or kind is int or kind is bool or value is None:
        return True
    try:
        if kind is list:  # what rows hold is small, and json writes small values slowly
            return all(map(is_json, value))
        if kind is dict:
            return all(type(key) is str for key in value) and all(map(is_json, value.values()))
        json.dumps(value, allow_nan=False)
    except (TypeError, ValueError, RecursionError):
        return False
    return True


_TAKEN = {"id": "source_id", ROW: f"source_{ROW}"}
"""Other names for columns whose own have a meaning in ``meta``."""


def other_columns(row: Row, used: Sequence[str]) -> dict[str, Any]:
    """The non-empty columns that JSON can represent; ``id`` and ``row`` get other names."""
    columns: dict[str, Any] = {}
    for name, value in row.items():
        if name in used or is_media_column(name):
            continue
        if value is None or value == [] or value == "":
            continue
        if not is_json(value):
            continue
        columns[_TAKEN.get(name, name)] = value
    return columns


ANSWER = re.compile(r"<answer>(.*?)</answer>", re.DOTALL)


def inside_answer(text: Any) -> Any:
    """The content of the last ``<answer>`` tag; a value without a tag is returned unchanged."""
    contents = ANSWER.findall(text) if isinstance(text, str) else []
    return contents[-1].strip() if contents else text


def tagged_answer(text: Any) -> str:
    """The content of the last ``<answer>`` tag. Raises ValueError when there is none."""
    if not isinstance(text, str) or not ANSWER.search(text):
        raise ValueError(
            f"the solution {str(text)[:60]!r} has no <answer> tag; if all of it is the answer, "
            "convert the file with mmr1-data convert rows --map question=…,answer=…,image=…"
        )
    return str(inside_answer(text))


def assemble_question(
    row: Row,
    place: Place,
    question: str,
    answer: Any,
    *,
    images: Any = None,
    videos: Any = None,
    task: str | None,
    used: Sequence[str],
    untagged: bool = True,
    options: Any = None,
    system: str | None = None,
) -> Sample:
    """A sample of one question. With options it is a choice, and its answer becomes a letter.

    Args:
        row: See :func:`mmr1.data.forms.assemble.assemble`, also for the others.
        options: The options; by default those of the row, see :func:`options_of`.
        task: Task type without options.
        system: System prompt.

    Raises:
        ValueError: The answer is none of the options, or the row cannot be used.
    """
    columns: tuple[str, ...] = OPTIONS
    if options is None:
        choices, columns = options_of(row, answer)
    else:
        choices = options if isinstance(options, Options) else read_options(options)
    meta = {}
    if choices is not None:
        question = choices.ask(question)
        if stated_task(row) is None or task == "choice":
            named = f"options={','.join(c for c in columns if c in row)},answer_index=answer"
            task, answer = "choice", choices.gold(answer, named)
        meta = {"options": _literal(choices.for_reward)}
    turns = [("user", question)] if not system else [("system", system), ("user", question)]
    return assemble(
        row, place, turns, images=images, videos=videos, answer=answer, task=task,
        used=(*used, *OPTIONS, *columns), untagged=untagged, meta=meta,
    )  # fmt: skip


def _literal(options: Any) -> Any:
    """Options as they are read: with tags that were written as text."""
    if isinstance(options, Mapping):
        return {letter: literal(text) for letter, text in options.items()}
    return [literal(text) for text in options]
