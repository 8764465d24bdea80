"""TVGBench: moments as ``"13.4-28.1"``."""

import re
from collections.abc import Iterator

from datasets_prep.converters.base import Changed, Converter
from datasets_prep.moments import moment
from mmr1.data.forms.form import Place, Row
from mmr1.types import Sample

_SPAN = re.compile(r"\s*([\d.]+)\s*-\s*([\d.]+)\s*")


def convert(row: Row, place: Place) -> Iterator[Sample | Changed]:
    """Start and end are the two numbers of the answer."""
    span = _SPAN.fullmatch(str(row["answer"]))
    if span is None:
        raise ValueError(f"the answer {row['answer']!r} is no 'start-end'")
    bounds = row.get("start"), row.get("end")
    cut = None if bounds[0] is None or bounds[1] is None else (float(bounds[0]), float(bounds[1]))
    times = (float(span[1]), float(span[2]))
    yield from moment(row, place, row["path"], row["question"], times, row["duration"], cut)


CONVERTER = Converter(
    name="tvgbench",
    description="TVGBench: temporal grounding test of Time-R1",
    source="xiaomi-research/time-r1 dataset/timer1/annotations",
    licence="Apache-2.0 (Time-R1); the videos have their own terms; a test set",
    files=("*tvgbench*.json",),
    convert=convert,
)
