"""Row formats of other projects. Each is recognised by its columns and read into a ``Sample``.

The formats are in ``catalog``, by where their rows come from. What they share lies beside it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from functools import cache, lru_cache, partial
from inspect import isfunction

from mmr1.data.forms.assemble import is_json
from mmr1.data.forms.boxes import BoxesError, check_gold_boxes
from mmr1.data.forms.columns import is_media_column, remedy
from mmr1.data.forms.form import Form, Place, Row
from mmr1.data.forms.options import as_choice
from mmr1.registry import Registry
from mmr1.rewards.plugins.columns import ROW
from mmr1.types import Sample

# A row has the first format that matches it, so specific formats come before general ones.
_IN_ORDER = {
    "canonical": "canonical",
    "lmm_r1": "projects",
    "verl": "frameworks",
    "openrlhf": "frameworks",
    "trl": "frameworks",
    "sharegpt": "frameworks",
    "vlm_r1": "projects",
    "video_r1": "projects",
    "rec": "projects",
    "r1_v": "projects",
    "r1_v_eval": "projects",
    "easyr1": "frameworks",
    "mathvista": "benchmarks",
    "mmmu": "benchmarks",
    "vlmevalkit": "benchmarks",
    "clevr": "benchmarks",
    "tvgbench": "moments",
    "time_r1": "moments",
    "vqa": "benchmarks",
    "vqa_references": "benchmarks",
    "chartqa": "benchmarks",
    "swift": "frameworks",
}
FORMS = Registry(
    "data.format",
    {name: f"mmr1.data.forms.catalog.{file}:{name.upper()}" for name, file in _IN_ORDER.items()},
    group="mmr1.forms",
    attribute="FORM",
)
"""Each is a ``Form``. One that is not built in is used where ``data.format`` names it, as is a
function that turns its rows into those of a format that is recognised."""


@cache
def built_in_forms() -> tuple[Form, ...]:
    """The formats that are recognised, in the order in which they are tried."""
    return tuple(map(FORMS.load, FORMS.builtin))


def recognise(row: Row) -> str:
    """The name of a row's format. Raises ValueError if no format has these keys."""
    for form in built_in_forms():
        if form.matches(row):
            return form.name
    shown = ", ".join(sorted(map(str, row)))
    raise ValueError(f"a row with the columns {shown} has no known format{_nearest(row)}")


def _nearest(row: Row) -> str:
    """Say what the row lacks of the format that it has most of, or how to name its columns."""
    null, lacking = (
        [(form, [key for key in form.keys if lacks(key)]) for form in built_in_forms()]
        for lacks in (lambda key: row.get(key) is None, lambda key: key not in row)
    )
    for (form, empty), (_, missing) in zip(null, lacking, strict=True):
        if empty and not missing:
            columns = ", ".join(map(repr, empty))
            return f": of the format '{form.name}' it has no value in {columns}; mend the row"
    near = [(form, m) for form, m in lacking if len(m) == 1 and form.keys[0] in row]
    said = "".join(f"; '{form.name}' has '{missing[0]}' as well" for form, missing in near[:3])
    return f"{said}; {remedy(row)}"


_LONG = re.compile(r"(?<![\w'])'([^'\n]*)'(?!\w)|(\S{160})\S{80,}")


def shortened(reason: str) -> str:
    """A message with each long value that it quotes cut to about 80 characters.

    >>> shortened(f"'{'a' * 400}' is no box") == f"'{'a' * 60}…{'a' * 20}' is no box"
    True
    """

    def cut(match: re.Match[str]) -> str:
        if match[2]:
            return f"{match[2]}…"
        value = match[1]
        return match[0] if len(value) <= 120 else f"'{value[:60]}…{value[-20:]}'"

    return _LONG.sub(cut, reason)


def check_form(form: str) -> None:
    """Check ``data.format``. Raises ValueError if no format has this name."""
    named_form(form)


@cache
def named_form(name: str) -> Form:
    """The format that ``data.format`` names.

    Raises:
        ValueError: If no format has the name, or the name is another thing's.
    """
    form = FORMS.load(name)
    if isinstance(form, Form):
        return form
    if isfunction(form):
        return Form(name, "", (), partial(_read_rewritten, form))
    raise ValueError(
        f"data.format={name} is a {type(form).__name__}; it must name a function from a row to a "
        "row of a known format, or an mmr1.data.forms.form.Form"
    )


def _read_rewritten(rewrite: Callable[[Row], Row], row: Row, place: Place) -> Sample:
    made = rewrite(row)
    if not isinstance(made, Mapping):
        raise ValueError(
            f"{rewrite.__name__} returned {type(made).__name__}; it must return a row as a "
            'dictionary, such as {"problem": ..., "images": [...], "answer": ...}'
        )
    return read_row(made, place)


def read_row(row: Row, place: Place, form: str | None = None, own: Row | None = None) -> Sample:
    """A row as a sample. Its format is recognised by its keys unless ``form`` names it.

    Args:
        row: Row with the names of columns that its format has.
        place: Where it is.
        form: Its format.
        own: The row with the columns that reward functions ask for, where others were renamed.

    Raises:
        ValueError: The row cannot be used.
    """
    if form is not None:
        check_form(form)
    name = form or "any format"
    try:
        name = form or recognise(row)
        sample = named_form(name).read(row, place)
        check_gold_boxes(sample)
        if name == "canonical":
            return sample
        return with_own_columns(as_choice(sample), row if own is None else own)
    except BoxesError:
        raise
    except ValueError as error:
        raise ValueError(shortened(str(error))) from error
    except KeyError as error:
        raise ValueError(f"the key {error} is missing") from error
    except Exception as error:  # a value of another type than the format has, anywhere in the row
        raise ValueError(
            f"not a row of '{name}': a value is not of the type that it has there "
            f"({type(error).__name__}: {error}; columns: {_types(row)}); mend the row, or set "
            "data.format"
        ) from error


def _types(row: Row) -> str:
    return ", ".join(f"{name} {type(value).__name__}" for name, value in row.items())


_CONVERSATIONS = frozenset((
    "prompt", "messages", "message", "conversations", "history", "query", "response", "completion",
    "process",
))  # fmt: skip
"""What a reward function gets from the sample itself: the prompt, and a demonstration."""


def with_own_columns(sample: Sample, row: Row) -> Sample:
    """The sample with those columns of its row in ``meta.row`` that ``meta`` does not have as such.

    Without the conversation and its media, but with a prompt that is a text: reward functions of
    TRL's form get texts then, and messages otherwise. A form may have put columns there that the
    project's own loader makes; the row's own win.
    """
    meta = sample.meta
    made = meta.get(ROW)
    own = {name: value for name, value in made.items() if name not in row} if made else {}
    for name, value in row.items():
        text_prompt = name == "prompt" and isinstance(value, str)
        if value is None or value == "" or value == [] or (_is_of_sample(name) and not text_prompt):
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
    """True if the sample itself has the contents of a column of this name."""
    return name in _CONVERSATIONS or is_media_column(name)
