"""Answers whose steps are labelled, as records for reward models of steps."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from mmr1.data.forms.assemble import assemble
from mmr1.data.forms.form import Place, Row
from mmr1.types import Sample


def assemble_steps(
    row: Row,
    place: Place,
    question: str,
    steps: Sequence[tuple[str, float]],
    *,
    used: Sequence[str],
    images: Any = None,
    answer: Any = None,
) -> Sample:
    """A sample with ``completions`` and ``labels``, from 0 (wrong) to 1 (right), in ``meta``.

    Raises:
        ValueError: No step has a label.
    """
    if not steps:
        raise ValueError("no step has a label")
    meta = {
        "completions": [text.strip() for text, _ in steps],
        "labels": [label for _, label in steps],
    }
    return assemble(
        row, place, [("user", question)], images=images, answer=answer, used=used, untagged=True,
        meta=meta,
    )  # fmt: skip
