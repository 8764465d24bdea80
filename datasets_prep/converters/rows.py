"""Rows that data.train reads, by the list of its formats; or columns that the user names."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import partial
from typing import Any, get_args

from datasets_prep.converters import CONVERTERS
from datasets_prep.converters.base import ROW_FILES, Converter, with_task
from mmr1.data.forms import FORMS, named_form, read_row
from mmr1.data.forms.assemble import assemble_question, inside_answer
from mmr1.data.forms.boxes import grounded, read_gold
from mmr1.data.forms.catalog.benchmarks import answer_and_task
from mmr1.data.forms.columns import FIELDS, without_media
from mmr1.data.forms.form import Place, Row
from mmr1.data.forms.options import as_choice, read_options
from mmr1.registry import suggest
from mmr1.rewards.kind import reward_of_task
from mmr1.types import MediaKind, Sample

_LISTS = ("options", *get_args(MediaKind))
"""Fields that several columns may hold, in the order in which they are named."""


def mapping(text: str) -> dict[str, str]:
    """``question=problem,answer=solution`` as columns by field.

    Several columns of one field are ``image=left,right`` or ``image=left,image=right``. Without
    columns of its own (``task=count``) a format's rows keep theirs.

    Raises:
        ValueError: If the text is not of this form, a field is unknown or named twice, or the
            question is missing.
    """
    columns: dict[str, str] = {}
    field = ""
    for entry in text.split(","):
        before, (field, separator, column) = field, (p.strip() for p in entry.partition("="))
        if before in _LISTS and field and not separator:
            columns[before] += f",{field}"
            field = before
            continue
        if not separator or not column:
            raise ValueError(f"--map: '{entry}' is not of the form FIELD=COLUMN")
        if field not in FIELDS:
            raise ValueError(
                f"--map: unknown field '{field}'{suggest(field, list(FIELDS))}; {', '.join(FIELDS)}"
            )
        if field in columns and field not in _LISTS:
            raise ValueError(f"--map: {field} has two columns; only {', '.join(_LISTS)} may")
        columns[field] = f"{columns[field]},{column}" if field in columns else column
    if "question" not in columns and columns.keys() != {"task"}:
        raise ValueError("--map names no question; add question=COLUMN")
    if "answer_index" in columns and "answer" in columns:
        raise ValueError("--map: answer and answer_index are two golds; leave one of them out")
    if "answer_index" in columns and "options" not in columns:
        raise ValueError("--map: answer_index counts the options; name them too, options=COLUMN")
    return columns


def converter_of(name: str, columns: Mapping[str, str] | None = None) -> Converter:
    """The converter of this name, or one for rows of the format of this name.

    Args:
        name: A converter, a format of ``data.format``, or ``rows``: of the format that each row
            has, or of the columns that are named.
        columns: The columns by field; of a format only ``task``, the type of all its rows.

    Raises:
        ValueError: If no converter has the name, or the converter knows its columns.
    """
    columns = columns or {}
    code = name in CONVERTERS.names() and name != "rows"
    if columns and (code or (name != "rows" and columns.keys() != {"task"})):
        raise ValueError(f"--map is for the converter 'rows'; '{name}' knows its columns")
    if code:
        found: Converter = CONVERTERS.load(name)
        return found
    if name == "rows":
        return replace(ROWS, convert=partial(_convert, columns=columns, form=None))
    if name not in (known := {**CONVERTERS.names(), **FORMS.names()}) and ".py:" not in name:
        raise ValueError(
            f"unknown dataset or row format '{name}'{suggest(name, known)}; mmr1-data list"
        )
    form = named_form(name)
    described = f"rows of {form.written_by or name}"
    convert = partial(_convert, columns=columns, form=name)
    return replace(ROWS, name=name, description=described, convert=convert)


def _convert(
    row: Row, place: Place, columns: Mapping[str, str], form: str | None
) -> Iterator[Sample]:
    if "question" not in columns:
        yield with_task(read_row(row, place, form), columns.get("task"))
        return
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
        sample = as_choice(sample)
    yield sample if boxes is None else grounded(sample, boxes)


def _value(row: Row, field: str, column: str) -> Any:
    if column in row:
        return row[column]
    if field in _LISTS and "," in column:
        return [_value(row, field, one) for one in column.split(",")]
    if field == "task" and reward_of_task(column) is not None:
        return column  # the task type of all rows
    raise ValueError(
        f"no column '{column}' for the {field}{suggest(column, list(map(str, row)))}; the row has "
        f"{', '.join(map(str, row))}"
    )


ROWS = Converter(
    name="rows",
    description="rows as data.train reads them, or --map question=COLUMN,answer=COLUMN,…",
    source="yours",
    licence="that of the dataset",
    files=ROW_FILES,
    convert=partial(_convert, columns={}, form=None),
)
