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
    references,
    sharegpt,
    swift,
    time_r1,
    trl,
    tvgbench,
    verl,
    video_r1,
    vlm_r1,
    vlmevalkit,
    vqa,
)
from mmr1.data.forms.form import Form, Place, Row
from mmr1.data.forms.guess import remedy
from mmr1.data.forms.option_columns import refuse_bare_letter
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
    tvgbench.FORM,
    time_r1.FORM,
    vqa.FORM,
    references.FORM,
    references.CHART_FORM,
    swift.FORM,
)
FORMS: dict[str, Form] = {form.name: form for form in _IN_ORDER}
_RECORDS = (canonical.FORM.name, canonical.PARQUET_FORM.name)


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
    name = form or "any format"
    try:
        name = form or recognise(row)
        sample = FORMS[name].read(row, place)
        if name not in _RECORDS:
            refuse_bare_letter(sample, row)
        return sample
    except ValueError:
        raise
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
