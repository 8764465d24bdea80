"""MM-Eureka: a conversation as a JSON string, with absolute image paths of its authors' machine."""

import re
from collections.abc import Iterator

from datasets_prep.converters.base import Changed, Converter
from mmr1.data.forms import read_row
from mmr1.data.forms.form import Place, Row
from mmr1.types import Sample

_PREFIX = re.compile(r"(?:file:///?)?/?inspire/hdd/")


def convert(row: Row, place: Place) -> Iterator[Sample | Changed]:
    """Both formats of the dataset: ``message``, or ``conversations`` with ``image_urls``.

    Images are found by the ends of their paths, so the zips may be unpacked anywhere under the
    media root.
    """
    form = "lmm_r1" if "message" in row else "vlm_r1"
    moved = dict(row)
    for key in ("message", "image_urls", "image"):
        if isinstance(value := row.get(key), str):
            moved[key] = _PREFIX.sub("/inspire/hdd/", value)
        elif isinstance(value, list):
            moved[key] = [_PREFIX.sub("/inspire/hdd/", v) for v in value if isinstance(v, str)]
    sample = read_row(moved, place, form)
    yield sample if moved == dict(row) else Changed(sample, "image found by the end of its path")


CONVERTER = Converter(
    name="mm_eureka",
    description="MM-Eureka-Dataset: school mathematics with pictures",
    source="FanqingM/MM-Eureka-Dataset on the Hugging Face Hub",
    licence="Apache-2.0 (MM-Eureka)",
    files=("dataset*.jsonl", "*.jsonl"),
    convert=convert,
)
