"""TVGBench: moments as ``"13.4-28.1"``."""

from collections.abc import Iterator

from datasets_prep.converters.base import Changed, Converter
from datasets_prep.moments import counted
from mmr1.data.forms.catalog.moments import read_tvgbench_clipped
from mmr1.data.forms.form import Place, Row
from mmr1.types import Sample


def convert(row: Row, place: Place) -> Iterator[Sample | Changed]:
    """Start and end are the two numbers of the answer."""
    yield counted(*read_tvgbench_clipped(row, place))


CONVERTER = Converter(
    name="tvgbench",
    description="TVGBench: temporal grounding test of Time-R1",
    source="xiaomi-research/time-r1 dataset/timer1/annotations",
    licence="Apache-2.0 (Time-R1); the videos have their own terms; a test set",
    files=("*tvgbench*.json",),
    convert=convert,
)
