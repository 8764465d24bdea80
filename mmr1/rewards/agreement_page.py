"""The page of ``mmr1 reward agree``: figures, and the completions on which two rewards differ."""

from __future__ import annotations

import base64
import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from PIL import Image

from mmr1.files import atomic
from mmr1.rewards.agreement import Agreement
from mmr1.rewards.item import RewardItem
from mmr1.types import MediaRef, Reward

ROWS = 200
"""Disagreements on the page, the largest differences first."""
_SIDE = 256  # pixels of a thumbnail


def figures(agreement: Agreement) -> list[tuple[str, str]]:
    """The figures of an agreement as text."""
    return [
        (name, "-" if value is None else f"{value:.3f}")
        for name, value in (
            ("agreement", agreement.share),
            ("Cohen's kappa", agreement.kappa),
            ("correlation", agreement.correlation),
        )
    ]


def write_agreement_page(
    output: Path,
    names: tuple[str, str],
    threshold: float,
    agreement: Agreement,
    items: Sequence[RewardItem],
    rewards: tuple[Sequence[Reward], Sequence[Reward]],
) -> None:
    """Write the HTML file; it appears only once it is complete."""
    environment = Environment(
        loader=PackageLoader("mmr1.rewards", "."), autoescape=True, undefined=StrictUndefined
    )
    rows = [
        _row(items[index], rewards[0][index], rewards[1][index])
        for index in agreement.disagreements[:ROWS]
    ]
    page = environment.get_template("agreement_page.html.jinja").render(
        names=names,
        threshold=f"{threshold:g}",
        agreement=agreement,
        figures=figures(agreement),
        rows=rows,
    )
    with atomic(output) as file:
        file.write(page)


def _row(item: RewardItem, first: Reward, second: Reward) -> dict[str, Any]:
    return {
        "id": item.sample.id,
        "question": item.sample.question,
        "answer": str(item.sample.answer),
        "completion": item.completion,
        "first": f"{first.value:g}",
        "second": f"{second.value:g}",
        "pictures": [url for medium in item.sample.media if (url := _thumbnail(medium))],
    }


def _thumbnail(medium: MediaRef) -> str | None:
    """A small JPEG as a data URL; None for videos and files that are not there."""
    if medium.kind != "image":
        return None
    try:
        with Image.open(io.BytesIO(medium.read())) as image:
            small = image.convert("RGB")
    except OSError:
        return None
    small.thumbnail((_SIDE, _SIDE))
    buffer = io.BytesIO()
    small.save(buffer, "JPEG", quality=80)
    return f"data:image/jpeg;base64,{base64.b64encode(buffer.getvalue()).decode()}"
