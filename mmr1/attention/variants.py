"""Variants of attention that transformers' models ask for and our kernels do not compute."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

VARIANTS = ("sliding_window", "softcap", "s_aux", "position_bias")
"""Arguments of transformers' attention functions that change what is computed."""

DROPPED_BY_SDPA = ("softcap", "s_aux")
"""Those that transformers' SDPA attention takes and leaves out; a window is in its mask."""


def refuse_variants(arguments: Mapping[str, Any], variants: Sequence[str] = VARIANTS) -> None:
    """Refuse a layer whose attention is another one; leaving its argument out would be silent.

    Raises:
        ValueError: Names the argument.
    """
    for name in variants:
        if arguments.get(name) is not None:
            raise ValueError(
                f"the model's attention has a {name}, which mmr1's attention does not compute; "
                "take a model with full causal attention in all layers (docs/models.md)"
            )
