"""Open-vocabulary detection: labelled boxes against the gold ones (VLM-R1's ``odLength``).

Every label of the gold has an average precision as in COCO: greedy matching at IoU 0.5, 0.55, ...,
0.95, and the best precision at or beyond each of 101 recalls, of at most 100 boxes. Answers have no
scores, so boxes count in the order in which they stand. Boxes of labels that the gold has not lower
the length factor alone, as in the authors' code (``grpo_jsonl.py``).
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

from mmr1.boxes import Box, SpaceName, to_original
from mmr1.rewards.builtin.iou import Sizes, iou_of, size_at
from mmr1.rewards.kind import reward
from mmr1.rewards.reading.boxes import Labelled, gold_labels, read_labels
from mmr1.rewards.reading.read import score_answer
from mmr1.types import Reward

# Of two cats one is no gold; the other's IoU of 0.8 is enough at seven of ten thresholds.
_GOLD = [{"bbox_2d": [0, 0, 10, 10], "label": "cat"}]
_CATS = '[{"bbox_2d": [0, 0, 10, 8], "label": "cat"}, {"bbox_2d": [7, 7, 9, 9], "label": "cat"}]'
_EXAMPLE = {"completion": f"<answer>{_CATS}</answer>", "answer": _GOLD, "reward": 0.35}


@reward("ovd", paper="2504.07615", gold=gold_labels, tasks=("ovd",), example=_EXAMPLE)
def ovd(
    completion: str,
    answer: Any,
    model_space: SpaceName | None = None,
    original_sizes: Sizes = (),
    media_sizes: Sizes = (),
) -> float | Reward:
    """mAP of the labelled boxes, times gold boxes over boxes where there are too many.

    Args:
        completion: The whole completion.
        answer: The gold: a list of ``{"bbox_2d": [x1, y1, x2, y2], "label": ...}``, or it as text.
        model_space: Space in which the family of the model writes boxes.
        original_sizes: ``(width, height)`` of each file's image.
        media_sizes: ``(width, height)`` that the model saw of each.
    """
    gold, sizes = gold_labels(answer), [size_at(s, 0) for s in (original_sizes, media_sizes)]

    def score(found: Labelled) -> float:
        if not (gold and found):
            return float(not (gold or found))
        precisions = []
        for label, boxes in gold.items():
            own = [to_original(b, model_space or "original", *sizes) for b in found.get(label, [])]
            precisions += [average_precision(own, boxes, k / 20) for k in range(10, 20)]
        wanted, given = (sum(map(len, boxes.values())) for boxes in (gold, found))
        return min(1.0, wanted / given) * sum(precisions) / len(precisions)

    return score_answer(completion, "answer", read_labels, score)


def average_precision(found: Sequence[Box], gold: Sequence[Box], threshold: float) -> float:
    """Return the mean over 101 recalls of the best precision at or beyond it."""
    left, curve, total = list(gold), [], len(gold)
    for number, box in enumerate(found[:100], 1):
        if near := [other for other in left if iou_of(box, other) >= threshold]:
            left.remove(max(near, key=partial(iou_of, box)))
        curve.append((total - len(left), number))
    best = [max((n / m for n, m in curve if 100 * n >= k * total), default=0) for k in range(101)]
    return sum(best) / len(best)
