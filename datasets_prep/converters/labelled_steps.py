"""Answers with labelled steps, for reward models of steps: Math-Shepherd, PRM800K, VisualPRM."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from datasets_prep.converters.base import Converter
from mmr1.data.forms.assemble import assemble
from mmr1.data.forms.form import Place, Row
from mmr1.types import Sample

MARK = "\N{CYRILLIC SMALL LETTER KA}\N{CYRILLIC SMALL LETTER I}"
"""Stands at the end of each step of ``input``; ``label`` is the same text with + or - there."""


# Math-Shepherd: steps labelled by where their continuations lead.
def _convert_math_shepherd(row: Row, place: Place) -> Iterator[Sample]:
    """The question, and the steps from ``Step 1:`` on."""
    question, first, _ = row["input"].partition("Step 1:")
    if not first:
        raise ValueError("there is no 'Step 1:' in input")
    steps, position = [], 0
    for text in row["input"].split(MARK)[:-1]:
        end = position + len(text)
        if not row["label"].startswith(text, position) or row["label"][end : end + 1] not in "+-":
            raise ValueError("input and label are not the same text, so the labels have no steps")
        steps.append((text, float(row["label"][end] == "+")))
        position = end + 1
    steps[:1] = [(text.removeprefix(question), label) for text, label in steps[:1]]
    yield assemble_steps(row, place, question.strip(), steps, used=("input", "label", "task"))


MATH_SHEPHERD = Converter(
    name="math_shepherd",
    description="Math-Shepherd: answers whose steps are labelled by their continuations",
    source="peiyi9979/Math-Shepherd on the Hugging Face Hub",
    licence="none stated",
    files=("*.jsonl", "*.parquet"),
    convert=_convert_math_shepherd,
)


# PRM800K: people judged the steps of answers to MATH.
def _convert_prm800k(row: Row, place: Place) -> Iterator[Sample]:
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
    """The completion that stands for the step, and whether the path continues after it."""
    if step.get("human_completion"):
        return {"text": step["human_completion"]["text"], "rating": 1}, True
    completions, chosen = step["completions"] or [], step["chosen_completion"]
    if chosen is not None:
        return completions[chosen], True
    return next(iter(completions), None), False


PRM800K = Converter(
    name="prm800k",
    description="PRM800K: answers to MATH whose steps people judged",
    source="openai/prm800k on GitHub",
    licence="MIT",
    files=("phase*.jsonl",),
    convert=_convert_prm800k,
)


# VisualPRM400K: answers about images; a step's label is the share of its right continuations.
def _convert_visualprm(row: Row, place: Place) -> Iterator[Sample]:
    """The question, its images, and the steps with soft labels."""
    steps = [(step["step"], float(step["score"])) for step in row["steps_with_score"]]
    question = row["question"].replace("<image>", "").strip()
    yield assemble_steps(
        row, place, question, steps, images=row["image"], answer=row["answer"],
        used=("question", "answer", "steps_with_score", "response"),
    )  # fmt: skip


VISUALPRM = Converter(
    name="visualprm",
    description="VisualPRM400K (raw): answers about images with soft labels of their steps",
    source="OpenGVLab/VisualPRM400K-v1.1-Raw on the Hugging Face Hub",
    licence="MIT",
    files=("*.jsonl",),
    convert=_convert_visualprm,
)


def assemble_steps(
    row: Row,
    place: Place,
    question: str,
    steps: Sequence[tuple[str, float]],
    *,
    used: Sequence[str],
    images: Any = None,
    answer: Any = None,
) -> Sample:
    """A sample with ``completions`` and ``labels``, from 0 (wrong) to 1 (right), in ``meta``.

    Raises:
        ValueError: No step has a label.
    """
    if not steps:
        raise ValueError("no step has a label")
    meta = {
        "completions": [text.strip() for text, _ in steps],
        "labels": [label for _, label in steps],
    }
    return assemble(
        row, place, [("user", question)], images=images, answer=answer, used=used, untagged=True,
        meta=meta,
    )  # fmt: skip
