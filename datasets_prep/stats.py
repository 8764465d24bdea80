"""Statistics of a dataset: counts, sizes, vision tokens and answers, as a table and as a plot."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import repeat
from pathlib import Path

import numpy as np

from datasets_prep.outputs import refuse_empty
from datasets_prep.record_files import Part, located, map_parts, samples_of
from datasets_prep.task_checks import named
from mmr1.data.forms.boxes import BoxTally
from mmr1.extras import needs_extra
from mmr1.types import MediaRef
from mmr1.vision.budget import PixelBudget, VideoBudget, image_grid, tokens
from mmr1.vision.images import image_size
from mmr1.vision.videos import sampled_grid

Picture = tuple[tuple[int, int], PixelBudget]
"""Original size, and what it is fitted to."""


@dataclass
class Stats:
    """Statistics of a dataset: how often each value occurs.

    Attributes:
        boxes: The gold boxes.
        unusable: ``(location, reason)`` of the records that cannot be read, or whose media no
            model can be shown. They are not counted.
        pictures: The pictures of each record, and the tokens of its videos. The vision tokens that
            they make are counted by the process that adds all up: their arithmetic loads torch.
    """

    samples: int = 0
    boxes: BoxTally = field(default_factory=BoxTally)
    unusable: list[tuple[str, str]] = field(default_factory=list)
    tasks: Counter[str] = field(default_factory=Counter)
    sources: Counter[str] = field(default_factory=Counter)
    media: Counter[str] = field(default_factory=Counter)
    answers: Counter[str] = field(default_factory=Counter)
    pictures: Counter[tuple[tuple[Picture, ...], int]] = field(default_factory=Counter)
    vision_tokens: Counter[int] = field(default_factory=Counter)
    question_characters: Counter[int] = field(default_factory=Counter)
    sizes: Counter[tuple[int, int]] = field(default_factory=Counter)

    def add(self, other: Stats) -> None:
        """Count what the other counted."""
        self.samples += other.samples
        self.unusable += other.unusable
        self.boxes.merge(other.boxes)
        for mine, theirs in ((getattr(self, n), getattr(other, n)) for n in vars(self)):
            if isinstance(mine, Counter):
                mine.update(theirs)


def collect(path: Path, budget: PixelBudget) -> Stats:
    """The statistics of data in any known format; of media only the headers are read.

    Raises:
        ValueError: If the data has no record.
    """
    stats = Stats()
    for part, found in map_parts(collect_part, path, f"reading {path.name}", repeat((budget,))):
        known = {picture for pictures, _ in found.pictures for picture in pictures}
        if unfit := frozenset(picture for picture in known if not _fits(picture)):
            found = collect_part(part, budget, unfit)
        for (pictures, of_videos), count in found.pictures.items():
            found.vision_tokens[of_videos + sum(map(_tokens_of, pictures))] += count
        found.pictures.clear()
        stats.add(found)
    refuse_empty(path, stats.samples + len(stats.unusable))
    return stats


def collect_part(part: Part, budget: PixelBudget, unfit: Set[Picture] = frozenset()) -> Stats:
    """The statistics of the records of a part; ``unfit`` pictures cannot be shown."""
    stats = Stats()
    for place, sample in samples_of(part):
        stats.boxes.add(sample)
        try:
            if isinstance(sample, ValueError):
                raise sample
            media = sample.media
            shown = _shown(media, budget, unfit)
        except ValueError as error:
            stats.unusable += located(part, [(place, str(error))])
            continue
        stats.samples += 1
        stats.tasks[sample.task or "none"] += 1
        stats.sources[sample.source or "none"] += 1
        stats.media[media_class(tuple([ref.kind for ref in media]))] += 1
        stats.answers[answer_class(sample.answer)] += 1
        stats.question_characters[len(sample.question)] += 1
        stats.pictures[shown] += 1
        stats.sizes.update(size for size, _ in shown[0])
    return stats


def _shown(
    media: Sequence[MediaRef], budget: PixelBudget, unfit: Set[Picture]
) -> tuple[tuple[Picture, ...], int]:
    """Pictures and tokens of videos, from their headers. ValueError names a broken file."""
    pictures: list[Picture] = []
    of_videos = 0
    for ref in media:
        if ref.kind == "video":
            of_videos += tokens(sampled_grid(ref, VideoBudget()), budget.merge)
        if ref.kind != "image":
            continue
        try:
            picture = ref.size or image_size(ref), budget.of(ref.options)
            if picture in unfit:
                _tokens_of(picture)
        except ValueError as error:
            raise ValueError(named(ref, str(error))) from error
        pictures.append(picture)
    return tuple(pictures), of_videos


def _fits(picture: Picture) -> bool:
    try:
        return _tokens_of(picture) > 0
    except ValueError:
        return False


@lru_cache(maxsize=1 << 16)
def _tokens_of(picture: Picture) -> int:
    """Raises ValueError if no size within the budget has nearly the picture's shape."""
    size, budget = picture
    return tokens(image_grid(*size, budget), budget.merge)


@lru_cache(maxsize=1 << 10)
def media_class(media: tuple[str, ...]) -> str:
    """``text``, ``1 image``, ``2 images``, ``1 video``, ``1 image, 1 video``, … of their kinds."""
    counts = Counter(media)
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


def summary(counts: Mapping[int, int]) -> str:
    """Minimum, median, 95th percentile and maximum of values that occur so often."""
    if not counts:
        return "-"
    values = np.repeat([*counts], [*counts.values()])
    low, middle, high, top = np.percentile(values, (0, 50, 95, 100))
    return f"min {low:,.0f}  median {middle:,.0f}  p95 {high:,.0f}  max {top:,.0f}"


def rows(stats: Stats) -> list[tuple[str, str]]:
    """The statistics as rows of a table."""

    def counted(counter: Counter[str]) -> str:
        return ", ".join(f"{name}: {count:,}" for name, count in counter.most_common(8))

    widths: Counter[int] = Counter()
    heights: Counter[int] = Counter()
    for (width, height), count in stats.sizes.items():
        widths[width] += count
        heights[height] += count
    return [
        ("samples", f"{stats.samples:,}"),
        ("tasks", counted(stats.tasks)),
        ("sources", counted(stats.sources)),
        ("media", counted(stats.media)),
        ("answers", counted(stats.answers)),
        ("vision tokens of Qwen2.5-VL", summary(stats.vision_tokens)),
        ("question characters", summary(stats.question_characters)),
        ("image width", summary(widths)),
        ("image height", summary(heights)),
    ]


def draw(stats: Stats, path: Path) -> None:
    """Plot vision tokens, image sizes, answers and media as a PNG."""
    with needs_extra("report", "mmr1-data stats --plot"):
        from matplotlib.figure import Figure

    figure = Figure(figsize=(10, 7), layout="constrained")
    axes = figure.subplots(2, 2)
    tokens_of_sample = stats.vision_tokens
    axes[0, 0].hist(
        list(tokens_of_sample), bins=40, weights=[float(n) for n in tokens_of_sample.values()]
    )
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
