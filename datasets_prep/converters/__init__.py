"""Converters of other projects' datasets, by name.

Each has a file, or stands with its like in one of several, or is a row of ``row_formats.py``.
"""

from __future__ import annotations

import pkgutil

from datasets_prep.converters import row_formats
from datasets_prep.converters.base import Converter
from mmr1.registry import Registry

_SEVERAL = {
    "mathematics": ("geometry3k", "geoqa_choice", "math_vision", "mathverse", "mm_eureka", "mmk12"),
    "boxes": ("coco", "refcoco", "got10k", "vlm_r1_rec_train"),
    "video_choice": ("nextgqa", "open_r1_video"),
    "labelled_steps": ("math_shepherd", "prm800k", "visualprm"),
    "moments": ("charades_sta", "time_r1", "tvgbench"),
}
_NOT_CONVERTERS = ("base", "row_formats", *_SEVERAL)

CONVERTERS = Registry(
    "dataset to convert",
    {
        **{
            module.name: f"{__name__}.{module.name}:CONVERTER"
            for module in pkgutil.iter_modules(__path__)
            if module.name not in _NOT_CONVERTERS
        },
        **{
            name: f"{__name__}.{file}:{name.upper()}"
            for file, names in _SEVERAL.items()
            for name in names
        },
        **{
            name: f"{row_formats.__name__}:{name}"
            for name, value in vars(row_formats).items()
            if isinstance(value, Converter)
        },
    },
    group="mmr1.converters",
)
