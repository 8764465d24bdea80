"""Row formats of other projects. Each is recognised by its columns and read into a ``Sample``.

A format is a file in ``catalog``. What formats share lies beside it.
"""

from __future__ import annotations

from mmr1.data.forms.catalog import (
    canonical,
    clevr,
    easyr1,
    lmm_r1,
    mathvista,
    mmmu,
    openrlhf,
    r1_v,
    r1_v_eval,
    rec,
    sharegpt,
    swift,
    trl,
    verl,
    video_r1,
    vlm_r1,
    vlmevalkit,
    vqa,
)
from mmr1.data.forms.form import Form, Place, Row
from mmr1.data.forms.guess import remedy
from mmr1.data.forms.own_columns import with_own_columns
from mmr1.registry import suggest
from mmr1.types import Sample

# A row has the first format that matches it, so specific formats come before general ones.
_IN_ORDER = (
    canonical.PARQUET_FORM,
    canonical.FORM,
    lmm_r1.FORM,
    verl.FORM,
    openrlhf.FORM,
    trl.FORM,
    sharegpt.FORM,
    vlm_r1.FORM,
    video_r1.FORM,
    rec.FORM,
    r1_v.FORM,
    r1_v_eval.FORM,
    easyr1.FORM,
    mathvista.FORM,
    mmmu.FORM,
    vlmevalkit.FORM,
    clevr.FORM,
    vqa.FORM,
    swift.FORM,
)
_CANONICAL = (canonical.PARQUET_FORM.name, canonical.FORM.name)
FORMS: dict[str, Form] = {form.name: form for form in _IN_ORDER}


def recognise(row: Row) -> str:
    """The name of a row's format.

    Raises:
        ValueError: No format has these keys.
    """
    for name, form in FORMS.items():
        if form.matches(row):
            return name
    shown = ", ".join(sorted(map(str, row)))
    raise ValueError(f"a row with the columns {shown} has no known format; {remedy(row)}")


def check_form(form: str) -> None:
    """Check ``data.format``. Raises ValueError if no format has this name."""
    if form not in FORMS:
        raise ValueError(f"unknown data.format '{form}'{suggest(form, FORMS)}; {', '.join(FORMS)}")


def read_row(row: Row, place: Place, form: str | None = None) -> Sample:
    """A row as a sample. Its format is recognised by its keys unless ``form`` names it.

    Raises:
        ValueError: The row cannot be used.
    """
    if form is not None:
        check_form(form)
    form = form or recognise(row)
    try:
        sample = FORMS[form].read(row, place)
    except KeyError as error:
        raise ValueError(f"the key {error} is missing") from None
    return sample if form in _CANONICAL else with_own_columns(sample, row)
