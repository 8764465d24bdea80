"""Gold boxes in the rows of other projects, and the samples that have them as their answer."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any

from mmr1.boxes import Box, Space, check_inside, convert, pixels
from mmr1.data.forms.assemble import inside_answer, stated_task
from mmr1.data.forms.form import Row
from mmr1.rewards.builtin import reward_of_task
from mmr1.rewards.reading.boxes import boxes_of
from mmr1.types import MediaRef, Message, Sample, TextPart
from mmr1.vision.images import image_size

_FENCE = re.compile(r"```(?:json)?\s*(.*?)```", re.DOTALL)
_ASKS_FOR_BOXES = re.compile(
    r"bounding box|bbox|\bbox(?:es)?\b|\blocat|\bwhere\b|\bdetect|\bregion", re.IGNORECASE
)


def gold_boxes(row: Row, value: Any, question: str) -> list[Box] | None:
    """The boxes that a gold answer consists of, or None for an answer of another kind.

    Four bare numbers are a box if the question asks for one or the row's ``task`` says so.

    Args:
        row: For its column ``task``.
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
        space: Of the numbers; pixels of the image if None.
        size: Width and height of the image where the row states them; else its header is read.

    Raises:
        ValueError: There is another number of images, or a box leaves the image, or boxes in
            pixels are of 0 to 1.
    """
    if [ref.kind for ref in sample.media] != ["image"]:
        raise ValueError(f"boxes need one image; the row has {len(sample.media)} media")
    width, height = size or image_size(sample.media[0])
    original = pixels(width, height)
    if space is None and boxes and max(max(box) for box in boxes) <= 1 < min(width, height):
        raise ValueError(
            f"the boxes {list(boxes)!r:.60} are of 0 to 1; multiply them by the size of the "
            f"original image, here {width} x {height} pixels"
        )
    answer = [list(check_inside(convert(b, space or original, original), original)) for b in boxes]
    sample = with_size(sample, (width, height))
    return Sample(sample.id, sample.messages, answer, "iou", sample.source, sample.meta)


def with_size(sample: Sample, size: tuple[int, int]) -> Sample:
    """The sample with the original size stated at its one medium."""

    def sized(message: Message) -> Message:
        return Message(
            message.role,
            tuple(
                part
                if isinstance(part, TextPart)
                else MediaRef(part.kind, part.path, part.data, size, part.options)
                for part in message.parts
            ),
        )

    messages = tuple(sized(message) for message in sample.messages)
    return Sample(sample.id, messages, sample.answer, sample.task, sample.source, sample.meta)
