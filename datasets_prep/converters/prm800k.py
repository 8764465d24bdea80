"""PRM800K: people judged the steps of answers to MATH."""

from collections.abc import Iterator
from typing import Any

from datasets_prep.converters.base import Converter
from datasets_prep.labelled_steps import assemble_steps
from mmr1.data.forms.form import Place, Row
from mmr1.types import Sample


def convert(row: Row, place: Place) -> Iterator[Sample]:
    """The steps of the path that was followed. A neutral step counts as right, as in the paper.

    A step that nobody chose to follow ends the path (arXiv 2305.20050, section 2).
    """
    steps: list[tuple[str, float]] = []
    for step in row["label"]["steps"]:
        completion, followed = _on_the_path(step)
        if completion is not None and completion["rating"] is not None:
            steps.append((completion["text"], float(completion["rating"] >= 0)))
        if not followed:
            break
    question = row["question"]
    yield assemble_steps(
        row, place, question["problem"], steps, used=("question", "label"),
        answer=question["ground_truth_answer"],
    )  # fmt: skip


def _on_the_path(step: dict[str, Any]) -> tuple[dict[str, Any] | None, bool]:
    """The completion that stands for the step, and whether the path goes on after it."""
    if step.get("human_completion"):
        return {"text": step["human_completion"]["text"], "rating": 1}, True
    completions, chosen = step["completions"] or [], step["chosen_completion"]
    if chosen is not None:
        return completions[chosen], True
    return next(iter(completions), None), False


CONVERTER = Converter(
    name="prm800k",
    description="PRM800K: answers to MATH whose steps people judged",
    source="openai/prm800k on GitHub",
    licence="MIT",
    files=("phase*.jsonl",),
    convert=convert,
)
