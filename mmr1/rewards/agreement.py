"""The agreement of two rewards on the same completions, so that one can check the other.

Figures, and the page of ``mmr1 reward agree`` with the completions on which they differ.
"""

from __future__ import annotations

import base64
import io
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import StatisticsError, correlation
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined

from mmr1.files import atomic
from mmr1.rewards.item import RewardItem
from mmr1.types import MediaRef, Reward
from mmr1.vision.images import load_image


@dataclass(frozen=True, slots=True)
class Agreement:
    """Verdicts of two rewards; a completion passes where its reward is at the threshold or above.

    Attributes:
        both_pass: Completions that pass by both, and so on.
        invalid: Completions without a valid reward by the first, by the second.
        correlation: Pearson's r of the values; None where one of them is constant.
        disagreements: Indices of the completions on which they differ, the largest difference of
            the values first.
    """

    both_pass: int
    only_first: int
    only_second: int
    neither: int
    invalid: tuple[int, int]
    correlation: float | None
    disagreements: tuple[int, ...]

    @property
    def compared(self) -> int:
        """Completions with two valid rewards."""
        return self.both_pass + self.only_first + self.only_second + self.neither

    @property
    def share(self) -> float | None:
        """Share of the compared completions on which they agree; None without any."""
        return (self.both_pass + self.neither) / self.compared if self.compared else None

    @property
    def kappa(self) -> float | None:
        """Cohen's kappa (1960): agreement beyond chance; None where chance agrees always."""
        total = self.compared
        first = self.both_pass + self.only_first
        second = self.both_pass + self.only_second
        chance = (first * second + (total - first) * (total - second)) / max(total, 1) ** 2
        return None if self.share is None or chance == 1 else (self.share - chance) / (1 - chance)


def compare(first: Sequence[Reward], second: Sequence[Reward], threshold: float) -> Agreement:
    """The agreement of two rewards of the same completions."""
    pairs = {
        index: (a.value, b.value)
        for index, (a, b) in enumerate(zip(first, second, strict=True))
        if a.value is not None and b.value is not None
    }
    verdicts = {i: (a >= threshold, b >= threshold) for i, (a, b) in pairs.items()}
    counts = list(verdicts.values())
    differing = [i for i, (a, b) in verdicts.items() if a != b]
    return Agreement(
        counts.count((True, True)),
        counts.count((True, False)),
        counts.count((False, True)),
        counts.count((False, False)),
        (sum(not r.valid for r in first), sum(not r.valid for r in second)),
        correlation_of(list(pairs.values())),
        tuple(sorted(differing, key=lambda i: (-abs(pairs[i][0] - pairs[i][1]), i))),
    )


def correlation_of(pairs: Sequence[tuple[float, float]]) -> float | None:
    """Pearson's r; None of fewer than two pairs, and where one side is constant."""
    try:
        return correlation([a for a, _ in pairs], [b for _, b in pairs])
    except StatisticsError:
        return None


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
        small = load_image(medium)
    except ValueError:
        return None
    small.thumbnail((_SIDE, _SIDE))
    buffer = io.BytesIO()
    small.save(buffer, "JPEG", quality=80)
    return f"data:image/jpeg;base64,{base64.b64encode(buffer.getvalue()).decode()}"
