"""Rows with several references are read with all of them; the task names the function."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.data.form_rows import read, write_media, written


@pytest.fixture
def root(tmp_path: Path) -> Path:
    write_media(tmp_path)
    return tmp_path


TEN = ["yes"] * 7 + ["no"] * 3
PEOPLE = [
    {"answer": text, "answer_confidence": "yes", "answer_id": n} for n, text in enumerate(TEN, 1)
]


@pytest.mark.parametrize(
    ("row", "answer", "task"),
    [
        ({"answers": PEOPLE, "multiple_choice_answer": "yes", "question_type": "is"}, TEN,
         "vqa_soft"),
        ({"answers": TEN, "set_name": "val", "ocr_tokens": ["YES"]}, TEN, "vqa_soft"),
        ({"answers": ["1998", "in 1998"], "docId": 4720, "data_split": "val"}, ["1998", "in 1998"],
         "anls"),
        ({"answers": TEN, "ucsf_document_id": "x"}, TEN, "anls"),
        ({"answers": ["stop"]}, ["stop"], "anls"),
        ({"answers": {"text": ["Paris", "paris"], "answer_start": [3, 3]}}, ["Paris", "paris"],
         "anls"),
        ({"answer": ["the left cup", "cup"], "bbox": [1, 2, 3, 4], "segmentation": [1.5],
          "file_name": "COCO_1.jpg"}, ["the left cup", "cup"], "rouge"),
        ({"answer": ["7", "seven"], "task": "exact"}, ["7", "seven"], "exact"),
    ],
)  # fmt: skip
def test_all_references_are_the_gold(
    root: Path, row: dict[str, Any], answer: list[str], task: str
) -> None:
    sample = read({"question": "What?", "image": {"bytes": b"\x89PNG", "path": None}, **row}, root)
    assert (sample.answer, sample.task) == (answer, task)
    assert written(sample) == ["user: [bytes]What?"]
    assert not {"answers", "multiple_choice_answer"} & sample.meta.keys()


def test_answers_that_are_none(root: Path) -> None:
    for answers, said in (
        ([], "not a list of texts"), ([None], "not a list of texts"), (["", " "], "are empty"),
        (7, "not a list of texts"), ([{"text": "x"}], "not a list of texts"),
    ):  # fmt: skip
        with pytest.raises(ValueError, match=said):
            read({"question": "What?", "answers": answers}, root, "vqa_references")


def test_several_answers_may_be_parts_of_one(root: Path) -> None:
    row = {"question": "Which two?", "answer": ["3", "4"]}
    with pytest.raises(ValueError, match=r"references, of which one is enough, or parts .*'task'"):
        read(row, root)


def test_a_chart(root: Path) -> None:
    row = {"query": "How much?", "label": ["14"], "image": "a.png", "human_or_machine": 0}
    sample = read(row, root)
    assert (sample.answer, sample.task) == (["14"], "relaxed")
