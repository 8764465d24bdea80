"""Gold and predicted boxes of a rollout, in original pixels, as the run's own reward read them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from mmr1.boxes import Box, Size, is_box, to_original
from mmr1.rewards.builtin import reward_of_task
from mmr1.rewards.extract import extract_answer
from mmr1.rewards.grounding.iou import gold_boxes, read_boxes
from mmr1.rewards.item import BadGoldError

DRAWN = 50
"""Boxes of one completion that are drawn at most: a policy may write hundreds."""


@dataclass(frozen=True, slots=True)
class BoxReader:
    """Reads boxes with the options of a run's ``iou`` function.

    Attributes:
        always: Every prompt of the run is about boxes, whatever its task says.
        options: ``space``, ``extract`` and ``image`` of the function.
    """

    always: bool
    options: Mapping[str, Any]

    def applies(self, row: Mapping[str, Any]) -> bool:
        """Is this prompt about boxes?"""
        return self.always or reward_of_task(row.get("task")) == "iou"

    @property
    def image(self) -> int:
        """Which of the prompt's images the boxes are in."""
        return int(self.options.get("image", 0))

    def gold(self, row: Mapping[str, Any]) -> list[Box]:
        """The gold boxes; none where the answer is no list of boxes."""
        try:
            return gold_boxes(row.get("answer"))
        except BadGoldError:
            return []

    def predicted(self, text: str, original: Size | None, seen: Size | None) -> list[Box]:
        """The boxes of a completion, those that have an area."""
        space = self.options.get("space", "original")
        answer = extract_answer(text, self.options.get("extract", "auto"))
        boxes = read_boxes(answer or "") or []
        try:
            predicted = [to_original(box, space, original, seen) for box in boxes[:DRAWN]]
        except ValueError:  # a size that the conversion needs was not kept by this run
            return []
        return [box for box in predicted if is_box(box)]


def box_reader(config: Mapping[str, Any]) -> BoxReader:
    """The reader for a run with this configuration."""
    functions = (config.get("rewards") or {}).get("functions") or {}
    options = {
        str((function or {}).get("use") or name): (function or {}).get("options") or {}
        for name, function in functions.items()
    }
    if "iou" in options:
        return BoxReader(True, options["iou"])
    return BoxReader(False, options.get("auto", {}).get("iou", {}))
