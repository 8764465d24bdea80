"""Row formats of other projects. Each is recognised by its columns and read into a ``Sample``.

A format is a file in ``catalog``. What formats share lies beside it.
"""

from __future__ import annotations

from functools import cache

from mmr1.data.forms.form import Form, Place, Row
from mmr1.data.forms.guess import remedy
from mmr1.registry import Registry
from mmr1.types import Sample

_CATALOG = "mmr1.data.forms.catalog"
# A row has the first format that matches it, so specific formats come before general ones.
_IN_ORDER = (
    "canonical",
    "lmm_r1",
    "verl",
    "openrlhf",
    "trl",
    "sharegpt",
    "vlm_r1",
    "video_r1",
    "rec",
    "r1_v",
    "r1_v_eval",
    "easyr1",
    "mathvista",
    "mmmu",
    "vlmevalkit",
    "clevr",
    "vqa",
    "swift",
)
FORMS = Registry(
    "data.format",
    {
        "canonical_parquet": f"{_CATALOG}.canonical:PARQUET_FORM",
        **{name: f"{_CATALOG}.{name}:FORM" for name in _IN_ORDER},
    },
    group="mmr1.forms",
    attribute="FORM",
)
"""Each is a ``Form``. One that is not built in is used where ``data.format`` names it."""


@cache
def built_in_forms() -> tuple[Form, ...]:
    """The formats that are recognised, in the order in which they are tried."""
    return tuple(map(FORMS.load, FORMS.builtin))


def recognise(row: Row) -> str:
    """The name of a row's format.

    Raises:
        ValueError: No format has these keys.
    """
    for form in built_in_forms():
        if form.matches(row):
            return form.name
    shown = ", ".join(sorted(map(str, row)))
    raise ValueError(f"a row with the columns {shown} has no known format; {remedy(row)}")


def check_form(form: str) -> None:
    """Check ``data.format``. Raises ValueError if no format has this name."""
    named_form(form)


@cache
def named_form(name: str) -> Form:
    """The format that ``data.format`` names.

    Raises:
        ValueError: There is none of this name, or the name is another thing's.
    """
    form = FORMS.load(name)
    if not isinstance(form, Form):
        raise ValueError(
            f"data.format={name} is a {type(form).__name__}; it must name an "
            "mmr1.data.forms.form.Form"
        )
    return form


def read_row(row: Row, place: Place, form: str | None = None) -> Sample:
    """A row as a sample. Its format is recognised by its keys unless ``form`` names it.

    Raises:
        ValueError: The row cannot be used.
    """
    own = named_form(form or recognise(row))
    try:
        return own.read(row, place)
    except KeyError as error:
        raise ValueError(f"the key {error} is missing") from None
