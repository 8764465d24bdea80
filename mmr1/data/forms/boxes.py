"""Gold boxes in the rows of other projects, and the samples that have them as their answer."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from mmr1.boxes import Box, Space, check_inside, convert, pixels, thousandths, unit
from mmr1.data.forms.assemble import inside_answer, stated_task
from mmr1.data.forms.form import Row
from mmr1.rewards.kind import reward_of_task
from mmr1.rewards.reading.boxes import boxes_of
from mmr1.types import Sample, TextPart
from mmr1.vision.images import image_size

_FENCE = re.compile(r"```(?:json)?\s*(.*?)```", re.DOTALL)
_ASKS_FOR_BOXES = re.compile(
    r"bounding box|bbox|\bbox(?:es)?\b|\blocat|\bwhere\b|\bdetect|\bregion", re.IGNORECASE
)


def gold_boxes(row: Row, value: Any, question: str) -> list[Box] | None:
    """The boxes that a gold answer consists of, or None for an answer of another kind.

    Four bare numbers are a box if the question asks for one or the row's ``task`` says so.

    Args:
        row: Row, for its column ``task``.
        value: The answer, as JSON text or as a list.
        question: The text of the question.

    Raises:
        ValueError: Four bare numbers, and nothing tells what they are.
    """
    stated = reward_of_task(stated_task(row))
    boxes = read_gold(value) if stated in (None, "iou") else None
    if not boxes or stated == "iou" or "box" in str(value) or _ASKS_FOR_BOXES.search(question):
        return boxes
    raise ValueError(
        f"the answer {str(value)[:60]} may be a box or numbers; say which in a column 'task': "
        "'iou' or 'math'"
    )


def read_gold(value: Any) -> list[Box] | None:
    """The boxes that a value consists of, as JSON text or as a list; None for anything else."""
    if isinstance(value, str):
        text = str(inside_answer(value)).strip()
        fenced = _FENCE.fullmatch(text)
        try:
            value = json.loads(fenced[1] if fenced else text)
        except (ValueError, RecursionError):
            return None
    try:
        return list(boxes_of(value)) or None
    except ValueError:
        return None


def grounded(
    sample: Sample,
    boxes: Sequence[Sequence[float]],
    space: Space | None = None,
    size: tuple[int, int] | None = None,
) -> Sample:
    """The sample with boxes as its gold answer, in pixels of its one image.

    Args:
        sample: It has one image.
        boxes: ``xyxy`` or, with a ``space`` of that layout, ``xywh``.
        space: Space of the numbers; pixels of the image if None.
        size: Width and height of the image where the row states them; else its header is read.

    Raises:
        ValueError: If the sample has another number of images, or :func:`in_pixels` refuses a box.
    """
    if [ref.kind for ref in sample.media] != ["image"]:
        raise ValueError(f"boxes need one image; the row has {len(sample.media)} media")
    size = size or image_size(sample.media[0])
    sample = with_size(sample, size)
    answer = [list(box) for box in in_pixels(boxes, size, space)]
    return replace(sample, answer=answer, task="iou")


class BoxesError(ValueError):
    """Gold boxes that do not lie in their picture.

    Attributes:
        fits: The other spaces in which they would.
    """

    def __init__(self, reason: str, fits: Sequence[str] = ()) -> None:
        super().__init__(reason)
        self.fits = list(fits)


def in_pixels(
    boxes: Sequence[Sequence[float]], size: tuple[int, int], space: Space | None = None
) -> list[Box]:
    """The boxes ``xyxy`` in pixels of an image, clipped to it: the check of every gold box.

    Args:
        boxes: The boxes.
        size: Width and height of the original image.
        space: Space of the numbers; pixels of the image if None.

    Raises:
        BoxesError: If a box leaves the image or has its corners in the wrong order, or numbers in
            pixels lie between 0 and 1.
    """
    original = pixels(*size)
    try:
        if space is None and boxes and max(map(max, boxes)) <= 1 < min(size):
            raise ValueError(f"the boxes {list(boxes)!r:.60} are of 0 to 1")
        return [check_inside(convert(box, space or original, original), original) for box in boxes]
    except ValueError as error:
        fits = [] if space else [name for name, other in _others(size) if _fit(boxes, other)]
        fits = fits[:1] if fits[:1] == ["0 to 1"] else fits  # such small numbers fit anywhere
        named = f"; they fit as {' or '.join(fits)}" if fits else ""
        raise BoxesError(
            f"{error}{named}; gold boxes are x1, y1, x2, y2 in pixels of the original image, here "
            f"{size[0]} x {size[1]}",
            fits,
        ) from None


EXTENTS = "x, y, width, height"


def _others(size: tuple[int, int]) -> Iterator[tuple[str, Space]]:
    yield "0 to 1", unit()
    yield "0 to 1000", thousandths()
    yield EXTENTS, pixels(*size, layout="xywh")


def _fit(boxes: Sequence[Sequence[float]], space: Space) -> bool:
    try:
        for box in boxes:
            check_inside(box, space, tolerance=0)
    except (ValueError, TypeError):
        return False
    return True


def check_gold_boxes(sample: Sample) -> bool:
    """Check the gold boxes of a sample, if its task is about boxes; True if it has any.

    Raises:
        BoxesError: If :func:`in_pixels` raises it.
        ValueError: The gold is no boxes.
    """
    if reward_of_task(sample.task) != "iou" or sample.answer is None:
        return False
    image = next((ref for ref in sample.media if ref.kind == "image"), None)
    if image is None:
        raise ValueError(f"the task '{sample.task}' is about an image, and the record has none")
    boxes = read_gold(sample.answer)
    if boxes is None:
        raise BoxesError(f"the gold answer {sample.answer!r:.60} is not boxes [x1, y1, x2, y2]")
    in_pixels(boxes, image.size or image_size(image))
    return True


@dataclass(slots=True)
class BoxTally:
    """The gold boxes of a file: if it is in another space, those that fit do so by chance.

    Attributes:
        inside: Samples whose boxes lie in their pictures.
        outside: Rows whose boxes do not fit.
        fits: How many of these fit in another space, by its name.
        extents: Samples of the first whose boxes would fit as x, y, width and height too.
    """

    inside: int = 0
    outside: int = 0
    fits: Counter[str] = field(default_factory=Counter)
    extents: int = 0

    def add(self, result: Sample | ValueError) -> None:
        """Count a sample, or why it cannot be used."""
        if isinstance(result, BoxesError):
            self.outside += 1
            self.fits.update(result.fits)
        elif isinstance(result, Sample) and reward_of_task(result.task) == "iou":
            image = next((ref for ref in result.media if ref.kind == "image"), None)
            if result.answer is not None and image is not None:
                self.inside += 1
                space = pixels(*(image.size or image_size(image)), layout="xywh")
                self.extents += _fit(read_gold(result.answer) or (), space)

    def merge(self, other: BoxTally) -> None:
        """Count what the other counted."""
        self.inside += other.inside
        self.outside += other.outside
        self.fits.update(other.fits)
        self.extents += other.extents

    def most_outside(self) -> str | None:
        """The reason to use no box of a file; None if there is none.

        Most leave their pictures; or corners in the wrong order, and all boxes fit as extents.
        """
        total = self.inside + self.outside
        are_extents = self.fits[EXTENTS] == self.outside and self.extents == self.inside
        if self.outside < 2 or not (2 * self.outside > total or are_extents):
            return None
        (space, count), *_ = [*self.fits.most_common(1), ("", 0)]
        if are_extents:
            space, count = EXTENTS, total
        chance = ", so those of the others fit by chance" if self.inside else ""
        named = f"; {count} fit as {space}: convert the numbers to" if space else "; they must be"
        return (
            f"the gold boxes of {self.outside} of {total} records do not lie in their pictures"
            f"{chance}{named} x1, y1, x2, y2 in pixels of the original image"
        )

    def check(self, name: str) -> None:
        """Check that the boxes of a file are in pixels. Raises ValueError if most are not."""
        if (reason := self.most_outside()) is not None:
            raise ValueError(f"{name}: {reason}")


def with_size(sample: Sample, size: tuple[int, int]) -> Sample:
    """The sample with the original size stated at its one medium."""

    messages = tuple(
        replace(
            m, parts=tuple(p if isinstance(p, TextPart) else replace(p, size=size) for p in m.parts)
        )
        for m in sample.messages
    )
    return replace(sample, messages=messages)
