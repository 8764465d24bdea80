"""DeepEyes' own score of a conversation, by the functions of a checkout of it."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Mapping, Sequence
from typing import Any

SHOWN = "<|vision_start|><|image_pad|><|vision_end|>"
"""A picture of a tool as its functions count it in the decoded conversation."""


def score(
    completion: str,
    messages: Sequence[Mapping[str, Any]],
    answer: Any,
    data_source: str,
    extra_info: Mapping[str, Any] | None = None,
    *,
    original: str,
) -> float:
    """``_default_compute_score`` of ``original``/verl/utils/reward_score, which asks its judge."""
    folder = f"{original}/verl/utils"
    if folder not in sys.path:
        sys.path.insert(0, folder)
    of_source = importlib.import_module("reward_score")._default_compute_score
    turns = [f"{turn['content']}{SHOWN * len(turn.get('images', ()))}" for turn in messages]
    return float(of_source(data_source, "\n".join(turns), answer, extra_info))
