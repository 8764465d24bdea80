"""Rows of any format: the user says which columns hold the question, the answer and the media."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, get_args

from datasets_prep.converters.base import ROW_FILES, Converter
from mmr1.data.forms.assemble import assemble_question, inside_answer
from mmr1.data.forms.boxes import grounded, read_gold
from mmr1.data.forms.catalog.benchmarks import answer_and_task
from mmr1.data.forms.columns import FIELDS, remedy, without_media
from mmr1.data.forms.form import Place, Row
from mmr1.data.forms.options import read_options, refuse_bare_letter
from mmr1.data.readers import read_rows
from mmr1.registry import suggest
from mmr1.rewards.builtin import reward_of_task
from mmr1.types import MediaKind, Sample


def mapping(text: str) -> dict[str, str]:
    """``question=problem,answer=solution`` as columns by field.

    Raises:
        ValueError: It is not of this form, a field is unknown, or the question is missing.
    """
    columns: dict[str, str] = {}
    field = ""
    for entry in text.split(","):
        before, (field, separator, column) = field, (p.strip() for p in entry.partition("="))
        if before == "options" and field and not separator:  # the options are several columns
            columns["options"] += f",{field}"
            field = before
            continue
        if not separator or not column:
            raise ValueError(f"--map: '{entry}' is not of the form FIELD=COLUMN")
        if field not in FIELDS:
            raise ValueError(
                f"--map: unknown field '{field}'{suggest(field, list(FIELDS))}; {', '.join(FIELDS)}"
            )
        columns[field] = column
    if "question" not in columns:
        raise ValueError("--map names no question; add question=COLUMN")
    if "answer_index" in columns and "answer" in columns:
        raise ValueError("--map: answer and answer_index are two golds; leave one of them out")
    if "answer_index" in columns and "options" not in columns:
        raise ValueError("--map: answer_index counts the options; name them too, options=COLUMN")
    return columns


def with_columns(columns: Mapping[str, str]) -> Converter:
    """The converter for rows with these columns."""
    return replace(CONVERTER, convert=partial(_convert, columns=columns))


def propose(file: Path) -> str:
    """The message for a call without --map: what the first row of a file looks like."""
    for _, row in read_rows(file):
        if isinstance(row, dict):
            return f"the converter 'rows' needs --map; {remedy(row)}"
    return "the converter 'rows' needs --map question=COLUMN,answer=COLUMN,image=COLUMN"


def _convert(row: Row, place: Place, columns: Mapping[str, str]) -> Iterator[Sample]:
    values = {field: _value(row, field, column) for field, column in columns.items()}
    options = read_options(values.get("options"))
    if "answer_index" in columns:
        if options is None:
            raise ValueError(f"the options (column '{columns['options']}') are empty")
        values["answer"] = options.at(values["answer_index"])
    task, answer, boxes = values.get("task"), inside_answer(values.get("answer")), None
    if "answer" in columns and answer is None:
        raise ValueError(f"the answer (column '{columns['answer']}') is empty")
    if reward_of_task(task) == "iou" and (boxes := read_gold(answer)) is None:
        raise ValueError(f"the answer {str(answer)[:60]!r} is not a box [x1, y1, x2, y2]")
    if task is None and answer is not None:
        answer, task = answer_and_task(answer)
    kinds = [kind for kind in get_args(MediaKind) if kind in columns]
    others = without_media(row, kinds)
    sample = assemble_question(
        others, place, values["question"], answer, images=values.get("image"),
        videos=values.get("video"), task=task,
        options={} if options is None else options,
        system=values.get("system"), used=",".join(columns.values()).split(","),
    )  # fmt: skip
    if "task" not in columns:
        refuse_bare_letter(sample, row)
    yield sample if boxes is None else grounded(sample, boxes)


def _value(row: Row, field: str, column: str) -> Any:
    if column in row:
        return row[column]
    if field == "options" and "," in column:
        return [_value(row, field, one) for one in column.split(",")]
    if field == "task" and reward_of_task(column) is not None:
        return column  # the task type of all rows
    raise ValueError(
        f"no column '{column}' for the {field}{suggest(column, list(map(str, row)))}; the row has "
        f"{', '.join(map(str, row))}"
    )


CONVERTER = Converter(
    name="rows",
    description="rows of any format: --map question=COLUMN,answer=COLUMN,image=COLUMN",
    source="yours",
    licence="that of the dataset",
    files=ROW_FILES,
    convert=partial(_convert, columns={}),
)
