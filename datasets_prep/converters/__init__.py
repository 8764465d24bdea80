"""Converters of datasets that no format of ``mmr1.data.forms`` reads, by name.

Each has a file, or stands with its like in one of several. Rows of a known format need none:
:func:`datasets_prep.converters.rows.converter_of` makes one of the format.
"""

from __future__ import annotations

import pkgutil

from mmr1.registry import Registry

_SEVERAL = {
    "mathematics": ("geometry3k", "math_vision", "mathverse", "mm_eureka", "mmk12"),
    "boxes": ("coco", "refcoco"),
    "labelled_steps": ("math_shepherd", "prm800k", "visualprm"),
    "moments": ("charades_sta",),
}

CONVERTERS = Registry(
    "dataset to convert",
    {
        **{
            module.name: f"{__name__}.{module.name}:CONVERTER"
            for module in pkgutil.iter_modules(__path__)
            if module.name not in ("base", *_SEVERAL)
        },
        **{
            name: f"{__name__}.{file}:{name.upper()}"
            for file, names in _SEVERAL.items()
            for name in names
        },
    },
    group="mmr1.converters",
)
