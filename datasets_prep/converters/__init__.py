"""Converters of datasets that no format of ``mmr1.data.forms`` reads, by name.

Rows of a known format need none: :func:`datasets_prep.converters.rows.converter_of` makes one of
the format.
"""

from __future__ import annotations

from mmr1.registry import Registry

_IN_FILE = {
    "boxes": ("coco", "refcoco"),
    "imagefolder": ("imagefolder",),
    "labelled_steps": ("math_shepherd", "prm800k", "visualprm"),
    "mathematics": ("geometry3k", "math_vision", "mathverse", "mm_eureka", "mmk12"),
    "moments": ("charades_sta",),
    "rows": ("rows",),
}
CONVERTERS = Registry(
    "dataset to convert",
    {
        name: f"{__name__}.{file}:{name.upper()}"
        for file, names in _IN_FILE.items()
        for name in names
    },
    group="mmr1.converters",
)
