"""Statistics of a dataset: counts, sizes, vision tokens and answers, as a table and as a plot."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from mmr1.types import MediaRef, Sample
from mmr1.vision.budget import PixelBudget, VideoBudget, image_grid, tokens
from mmr1.vision.images import image_size
from mmr1.vision.videos import sampled_grid


@dataclass
class Stats:
    """Statistics of a dataset, with one entry per sample or medium."""

    tasks: Counter[str] = field(default_factory=Counter)
    sources: Counter[str] = field(default_factory=Counter)
    media: Counter[str] = field(default_factory=Counter)
    answers: Counter[str] = field(default_factory=Counter)
    vision_tokens: list[int] = field(default_factory=list)
    question_characters: list[int] = field(default_factory=list)
    sizes: list[tuple[int, int]] = field(default_factory=list)


def collect(samples: Sequence[Sample], budget: PixelBudget, video: VideoBudget) -> Stats:
    """The statistics of the samples; of media only the headers are read."""
    stats = Stats()
    for sample in samples:
        stats.tasks[sample.task or "none"] += 1
        stats.sources[sample.source or "none"] += 1
        stats.media[media_class(sample.media)] += 1
        stats.answers[answer_class(sample.answer)] += 1
        stats.question_characters.append(len(sample.question))
        stats.vision_tokens.append(vision_tokens(sample, budget, video))
        stats.sizes += [ref.size or image_size(ref) for ref in sample.media if ref.kind == "image"]
    return stats


def vision_tokens(sample: Sample, budget: PixelBudget, video: VideoBudget) -> int:
    """Vision tokens of a sample's media, from their headers. ValueError names a broken file."""
    total = 0
    for ref in sample.media:
        if ref.kind == "image":
            grid = image_grid(*(ref.size or image_size(ref)), budget.of(ref.options))
        else:
            grid = sampled_grid(ref, video)
        total += tokens(grid, budget.merge)
    return total


def media_class(media: Sequence[MediaRef]) -> str:
    """``text``, ``1 image``, ``2 images``, ``1 video``, ``1 image, 1 video``, …"""
    counts = Counter(ref.kind for ref in media)
    kinds = [f"{n} {kind}{'s' if n > 1 else ''}" for kind, n in sorted(counts.items())]
    return ", ".join(kinds) or "text"


def answer_class(answer: object) -> str:
    """``none``, ``number``, ``letter``, ``boxes``, ``list``, ``word`` or ``text``."""
    if answer is None:
        return "none"
    if isinstance(answer, list):
        return "boxes" if answer and isinstance(answer[0], list) else "list"
    text = str(answer).strip()
    if len(text) == 1 and text.isalpha() and text.isupper():
        return "letter"
    try:
        float(text)
    except ValueError:
        return "word" if text.isalpha() else "text"
    return "number"


def summary(values: Sequence[int]) -> str:
    """Minimum, median, 95th percentile and maximum."""
    if not values:
        return "-"
    low, middle, high, top = np.percentile(values, [0, 50, 95, 100])
    return f"min {low:,.0f}  median {middle:,.0f}  p95 {high:,.0f}  max {top:,.0f}"


def rows(stats: Stats, total: int) -> list[tuple[str, str]]:
    """The statistics as rows of a table."""

    def counted(counter: Counter[str]) -> str:
        return ", ".join(f"{name}: {count:,}" for name, count in counter.most_common(8))

    return [
        ("samples", f"{total:,}"),
        ("tasks", counted(stats.tasks)),
        ("sources", counted(stats.sources)),
        ("media", counted(stats.media)),
        ("answers", counted(stats.answers)),
        ("vision tokens", summary(stats.vision_tokens)),
        ("question characters", summary(stats.question_characters)),
        ("image width", summary([w for w, _ in stats.sizes])),
        ("image height", summary([h for _, h in stats.sizes])),
    ]


def draw(stats: Stats, path: Path) -> None:
    """Plot vision tokens, image sizes, answers and media as a PNG."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10, 7), layout="constrained")
    axes = figure.subplots(2, 2)
    axes[0, 0].hist(stats.vision_tokens, bins=40)
    axes[0, 0].set(title="vision tokens per sample", xlabel="tokens", ylabel="samples")
    if stats.sizes:
        axes[0, 1].scatter(*zip(*stats.sizes, strict=True), s=8, alpha=0.4)
    axes[0, 1].set(title="image sizes", xlabel="width (pixels)", ylabel="height (pixels)")
    for axis, counter, title in (
        (axes[1, 0], stats.answers, "answers"),
        (axes[1, 1], stats.media, "media"),
    ):
        names, counts = zip(*counter.most_common(8), strict=True)
        axis.barh(names, counts)
        axis.invert_yaxis()
        axis.set(title=title, xlabel="samples")
    figure.savefig(path, dpi=100)
