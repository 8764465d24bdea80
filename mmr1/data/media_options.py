"""The options of a medium: how a video is sampled, and how large the model sees a medium."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from mmr1.registry import suggest

MEDIA_OPTIONS = {
    "fps": float,
    "start": float,
    "end": float,
    "nframes": int,
    "min_frames": int,
    "max_frames": int,
    "min_pixels": int,
    "max_pixels": int,
    "total_pixels": int,
    "shuffle": int,
}
"""Names of the options and the types of their values. Times are in seconds."""

# As qwen-vl-utils names them.
_RENAMED = {"video_start": "start", "video_end": "end"}
_FIXED_SIZE = ("resized_height", "resized_width")


def options_of(part: Mapping[str, Any]) -> dict[str, Any]:
    """The options among the keys of a chat part in the form of qwen-vl-utils.

    Raises:
        ValueError: The part fixes the size in pixels, which no record can.
    """
    if fixed := [key for key in _FIXED_SIZE if part.get(key) is not None]:
        raise ValueError(f"'{fixed[0]}' fixes a size; set min_pixels and max_pixels instead")
    renamed = {_RENAMED.get(key, key): value for key, value in part.items()}
    return {k: v for k, v in renamed.items() if k in MEDIA_OPTIONS and v is not None}


def check_options(options: Mapping[str, Any]) -> None:
    """Check the options of a medium.

    Raises:
        ValueError: There is no such option, or its value is no number of its type.
    """
    for name, value in options.items():
        if name not in MEDIA_OPTIONS:
            raise ValueError(
                f"unknown media option '{name}'{suggest(name, MEDIA_OPTIONS)}; "
                f"known are {', '.join(MEDIA_OPTIONS)}"
            )
        whole = MEDIA_OPTIONS[name] is int
        number = isinstance(value, int | float) and not isinstance(value, bool)
        if not number or not math.isfinite(value) or value < 0 or (whole and value != int(value)):
            kind = "a whole number" if whole else "a number"
            raise ValueError(f"the media option {name}={value!r} is not {kind} from 0 on")
