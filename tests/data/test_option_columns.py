"""Options under other names, padding, equal texts, golds that are letters, positions or classes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from datasets_prep.conversion import convert
from datasets_prep.converters.rows import mapping
from mmr1.data import sources
from mmr1.data.forms.options import lacks_options
from mmr1.data.sources import load_samples
from tests.data.form_rows import read, write_media, written

QUESTION = {"question": "Which is it?", "answer": "B"}


@pytest.mark.parametrize(
    "columns",
    [
        {"choice_a": "ant", "choice_b": "bee", "choice_c": "cat"},
        {"option_a": "ant", "option_b": "bee", "option_c": "cat"},
        {"optionA": "ant", "optionB": "bee", "optionC": "cat"},
        {"Option A": "ant", "Option B": "bee", "Option C": "cat"},
        {"a": "ant", "b": "bee", "c": "cat"},
        {"A": "ant", "B": "bee", "C": "cat", "D": None},
        {"a0": "ant", "a1": "bee", "a2": "cat"},
        {"option1": "ant", "option2": "bee", "option3": "cat"},
        {"option": "A. ant; B. bee; C. cat"},
        {"option": "A: ant\nB: bee\nC: cat"},
        {"options": "(A) ant (B) bee (C) cat"},
        {"options": '{"A": "ant", "B": "bee", "C": "cat", "D": ""}'},
        {"options": "['ant', 'bee', 'cat', nan]"},
        {"answer_choices": ["ant", "bee", "cat"]},
        {"candidates": ["ant", "bee", "cat", None]},
        {"choice": ["ant", "bee", "cat", ""]},
        {"choices": {"label": ["A", "B", "C"], "text": ["ant", "bee", "cat"]}},
        {"options": ["ant", "bee", "cat", "nan", float("nan")]},
        {"mc_options": ["ant", "bee", "cat"]},
    ],
)
@pytest.mark.parametrize("answer", ["B", "bee"])
def test_options_under_other_names(tmp_path: Path, columns: dict[str, Any], answer: str) -> None:
    sample = read({**QUESTION, "answer": answer, **columns}, tmp_path)
    assert written(sample) == ["user: Which is it?\nA. ant\nB. bee\nC. cat"]
    assert (sample.answer, sample.task) == ("B", "choice")
    assert sample.meta["options"] == ["ant", "bee", "cat"]


def test_columns_that_are_no_options_stay(tmp_path: Path) -> None:
    for row in (
        {"question": "a + b?", "answer": "5", "a": "2", "b": "3"},
        {"question": "Who?", "answer": "Ann", "candidates": ["Bob", "Eve"]},
        {"question": "How many?", "answer": 2, "a": 1, "b": 7},
    ):
        sample = read(row, tmp_path)
        assert written(sample) == [f"user: {row['question']}"]
        assert sample.task != "choice"


@pytest.mark.parametrize(
    "row",
    [
        {"question": "Which?", "answer": "B"},
        {"question": "A cat or what?", "answer": "(A)"},
        {"problem": "Which?", "answer": "B."},
        {"problem": "Which?", "solution": "<answer>C</answer>"},
        {"prompt": [{"role": "user", "content": "Which?"}], "reward_model": {"ground_truth": "D"}},
        {"prompt": "Which?", "label": "A"},
        {"prompt": "Which?", "answer": "A", "unknown": ["ant", "bee"]},
        {"query": "Which?", "solution": "B"},
        {"conversations": [{"from": "human", "value": "Which?"}, {"from": "gpt", "value": "B"}]},
        {"message": '[{"role": "user", "content": "Which?"}]', "answer": "$\\boxed{B}$"},
    ],
)
def test_a_letter_without_options_is_a_choice(tmp_path: Path, row: dict[str, Any]) -> None:
    sample = read(row, tmp_path)
    assert (sample.task, len(sample.answer), lacks_options(sample)) == ("choice", 1, True)


@pytest.mark.parametrize("from_bytes", [0, 1 << 30])
def test_letters_without_options_are_said_once(
    tmp_path: Path, from_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mmr1.data.sources.FROM_BYTES", from_bytes)
    rows = [{"question": f"Which is {n}?", "answer": "AB"[n % 2]} for n in range(4)]
    rows += [{"question": "A. ant or B. bee?", "answer": "A"}, {"question": "2+2?", "answer": "4"}]
    (tmp_path / "r.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    said: list[str] = []
    load_samples(tmp_path / "r.jsonl", say=said.append)
    assert len(said) == 1
    assert "of 4 are letters without options" in said[0]


@pytest.mark.parametrize(
    "question",
    [
        "Which? A. ant B. bee", "Which?\nA: 4\nB: 5", "Which? (A) x (B) y", "哪个？A、蚂蚁 B、蜜蜂",
        "Is it A or B?", "Which of the points A, B, C?", "Which picture (A-D)?", "(a) x (b) y",
    ],
)  # fmt: skip
def test_a_letter_with_options_in_the_question(tmp_path: Path, question: str) -> None:
    sample = read({"question": question, "answer": "(B)"}, tmp_path)
    assert (sample.task, sample.answer, lacks_options(sample)) == ("choice", "B", False)


def test_a_letter_that_is_no_option(tmp_path: Path) -> None:
    row = {"question": "Which letter is on the sign?", "answer": "B", "task": "exact"}
    assert read(row, tmp_path).task == "exact"
    assert read({"question": "Which variable?", "answer": "x"}, tmp_path).answer == "x"


def test_padding_keeps_the_letters(tmp_path: Path) -> None:
    row = {"question": "Which?", "options": ["ant", None, "cat", ""], "answer": "C"}
    sample = read(row, tmp_path)
    assert written(sample) == ["user: Which?\nA. ant\nC. cat"]
    assert (sample.answer, sample.meta["options"]) == ("C", {"A": "ant", "C": "cat"})
    nothing = {"question": "How many?", "options": [None, ""], "answer": "7"}
    assert read(nothing, tmp_path).task == "math"


def test_equal_options(tmp_path: Path) -> None:
    for answer in ("A", "ant", "C"):
        row = {"question": "Which?", "options": ["ant", "bee", "ant "], "answer": answer}
        with pytest.raises(ValueError, match=r"the options A and C have the same text 'ant'"):
            read(row, tmp_path)
    row = {"question": "Which?", "options": ["ant", "bee", "ant"], "answer": "bee"}
    assert read(row, tmp_path).answer == "B"


def test_a_position_is_named_as_one(tmp_path: Path) -> None:
    row = {"question": "Which?", "options": ["ant", "bee", "cat"], "answer": 1}
    said = (
        r"the answer '1' is none of the options .* counted from 0, convert .*"
        r"--map question=question,options=options,answer_index=answer"
    )
    with pytest.raises(ValueError, match=said):
        read(row, tmp_path)
    both = {**row, "options": ["1", "2", "3"]}
    with pytest.raises(ValueError, match=r"1 is the text of option A and the position of option B"):
        read(both, tmp_path)
    columns = {"question": "Which?", "a0": "ant", "a1": "bee", "answer": 1}
    with pytest.raises(ValueError, match=r"options=a0,a1,answer_index=answer"):
        read(columns, tmp_path)


def converted(folder: Path, row: dict[str, Any], text: str) -> Any:
    (folder / "rows.jsonl").write_text(json.dumps(row))
    convert("rows", folder / "rows.jsonl", folder / "out", workers=1, columns=mapping(text))
    (sample,) = load_samples(folder / "out")
    return sample


def test_several_columns_are_the_options(tmp_path: Path) -> None:
    row = {"q": "Which?", "x": "ant", "y": "bee", "z": "cat", "gold": 2, "level": 1}
    sample = converted(tmp_path, row, "question=q,options=x,y,z,answer_index=gold")
    assert written(sample) == ["user: Which?\nA. ant\nB. bee\nC. cat"]
    assert (sample.answer, sample.task) == ("C", "choice")
    assert sample.meta == {"options": ["ant", "bee", "cat"], "level": 1}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("question=q,answer=a,b", "'b' is not of the form FIELD=COLUMN"),
        ("question=q,options=a,answer=x,answer_index=y", "answer and answer_index"),
        ("question=q,answer_index=y", "answer_index counts the options; name them too"),
    ],
)
def test_mappings_of_options_that_are_none(text: str, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        mapping(text)


def test_positions_that_are_none(tmp_path: Path) -> None:
    for number, value in enumerate((3, -1, "x", None)):
        folder = tmp_path / str(number)
        folder.mkdir()
        row = {"q": "Which?", "o": ["ant", "bee"], "gold": value}
        message = "is not a position of one of 2 options, counted from 0"
        with pytest.raises(ValueError, match=message):
            converted(folder, row, "question=q,options=o,answer_index=gold")


@pytest.mark.parametrize("large", [False, True])
@pytest.mark.parametrize("saved", [False, True])
def test_a_class_label_is_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, large: bool, saved: bool
) -> None:
    datasets = pytest.importorskip("datasets")
    write_media(tmp_path)
    if large:
        monkeypatch.setattr(sources, "FROM_BYTES", 0)
    features = datasets.Features(
        {"question": datasets.Value("string"), "answer": datasets.ClassLabel(names=["no", "yes"])}
    )
    rows = {"question": ["Is it red?", "Is it blue?"], "answer": [1, 0]}
    dataset = datasets.Dataset.from_dict(rows, features=features)
    path = tmp_path / ("saved" if saved else "rows.parquet")
    (dataset.save_to_disk if saved else dataset.to_parquet)(str(path))
    assert [s.answer for s in load_samples(path)] == ["yes", "no"]
