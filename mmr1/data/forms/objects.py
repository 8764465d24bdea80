"""ms-swift's ``objects``: names and boxes for the placeholders of a conversation.

``<ref-object>`` stands for the next of the names, ``<bbox>`` for the next of the boxes.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from mmr1.boxes import Space, pixels, thousandths, unit
from mmr1.data.forms.boxes import grounded
from mmr1.data.forms.form import Turns
from mmr1.types import Sample
from mmr1.vision.images import image_size

_NAME, _BOX = "<ref-object>", "<bbox>"
_ONLY_BOXES = re.compile(r"(?:<bbox>|<ref-object>|[\s\[\](),.;:'\"])*")
_SPACES: dict[str, Callable[..., Space]] = {"real": pixels, "norm1": unit, "norm1000": thousandths}


@dataclass(frozen=True, slots=True)
class Objects:
    """A conversation with its names filled in, and the boxes that are its gold answer.

    Attributes:
        turns: The turns. A reply that was nothing but boxes is gone.
        boxes: The gold boxes; None without any.
        space: What the numbers are: ``real`` (pixels), ``norm1`` or ``norm1000``.
        used: Whether the column had a placeholder or a gold; else it is left in ``meta``.
    """

    turns: Turns
    boxes: Sequence[Sequence[float]] | None = None
    space: str = "real"
    used: bool = False

    def ground(self, sample: Sample) -> Sample:
        """The sample with the boxes as its gold answer, if there are any."""
        if self.boxes is None:
            return sample
        if self.space == "real" or not sample.media:
            return grounded(sample, self.boxes)
        size = image_size(sample.media[0])
        return grounded(sample, self.boxes, _SPACES[self.space](), size)


def place_objects(turns: Turns, column: Any, *, needs_gold: bool) -> Objects:
    """Fill the placeholders of a conversation.

    Args:
        turns: The conversation.
        column: The value of ``objects``: a mapping with ``ref``, ``bbox`` and ``bbox_type``, or a
            list of ``{"caption", "bbox", "bbox_type"}``, or one of them as JSON text.
        needs_gold: Boxes without a placeholder are the gold answer of a question without a reply.

    Raises:
        ValueError: There are other numbers of names or boxes than placeholders, or boxes stand
            within a text: there they would need the pixels that the model sees, which a record does
            not know.
    """
    names, boxes, space = _read(column)
    text = "".join(text for _, text in turns)
    if not names and not boxes and _NAME not in text and _BOX not in text:
        return Objects(turns)
    if text.count(_NAME) not in (0, len(names)):
        raise ValueError(f"{text.count(_NAME)} {_NAME} placeholder(s) but {len(names)} name(s)")
    if _BOX not in text:
        open_question = needs_gold and bool(boxes) and turns[-1][0] == "user"
        filled = _named(turns, names)
        if open_question:
            return Objects(filled, boxes, space, used=True)
        return Objects(filled, used=_NAME in text)
    role, reply = turns[-1]
    if role != "assistant" or _BOX in "".join(t for _, t in turns[:-1]):
        raise ValueError(
            f"{_BOX} in a question: its numbers would have to be in pixels of the image as the "
            "model sees it, which no record knows; drop the row"
        )
    if not _ONLY_BOXES.fullmatch(reply):
        raise ValueError(
            f"{_BOX} within a text: mmr1 learns boxes as gold answers, not inside demonstrations; "
            "give the row a reply of boxes alone, or drop it"
        )
    if reply.count(_BOX) != len(boxes):
        raise ValueError(f"{reply.count(_BOX)} {_BOX} placeholder(s) but {len(boxes)} box(es)")
    return Objects(_named(turns, names)[:-1], boxes, space, used=True)


def _named(turns: Turns, names: Sequence[str]) -> Turns:
    rest = iter(names)
    return [(role, re.sub(_NAME, lambda _: next(rest), text)) for role, text in turns]


def _read(column: Any) -> tuple[list[str], list[Sequence[float]], str]:
    """``(names, boxes, space)``."""
    value = json.loads(column) if isinstance(column, str) and column else column
    if not value:
        return [], [], "real"
    if isinstance(value, Sequence):
        entries = value
        names = [str(e["caption"]) for e in entries if e.get("caption")]
        boxes = [e["bbox"] for e in entries if e.get("bbox")]
        kinds = {e.get("bbox_type") or "real" for e in entries}
    elif isinstance(value, Mapping):
        names = [str(name) for name in value.get("ref") or []]
        boxes = list(value.get("bbox") or [])
        kinds = {value.get("bbox_type") or "real"}
    else:
        raise ValueError(f"'objects' is {type(value).__name__}, neither a mapping nor a list")
    if len(kinds) > 1 or not kinds <= set(_SPACES):
        raise ValueError(f"bbox_type {', '.join(sorted(kinds))}; known are {', '.join(_SPACES)}")
    if points := [box for box in boxes if len(box) != 4]:
        raise ValueError(f"{list(points[0])} is no box of four numbers")
    return names, boxes, kinds.pop()
