"""Columns by keys: rows that name question, answer and media in their own way."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from mmr1.config import DataConfig
from mmr1.data import sources
from mmr1.data.forms.columns import images_of, renamed, videos_of
from mmr1.data.sources import load_samples
from tests.data.form_rows import write_media
from tests.trainer.tiny_groups import family

KEYS = {"prompt_key": "q", "answer_key": "gt", "image_key": "pic", "video_key": "film"}


@pytest.fixture
def root(tmp_path: Path) -> Path:
    write_media(tmp_path)
    return tmp_path


def rows(root: Path, *rows: dict[str, Any]) -> Path:
    path = root / "own.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


@pytest.mark.parametrize("large", [False, True])
def test_rows_with_columns_of_other_names(root, monkeypatch, large):
    if large:  # read from the disk, by an index
        monkeypatch.setattr(sources, "FROM_BYTES", 0)
    path = rows(
        root,
        {
            "q": "<image>Who?",
            "gt": "Ann",
            "pic": ["a.png"],
            "film": None,
            "problem": "9",
            "level": 3,
        },
        {"q": "<video>What?", "gt": "Bob", "film": ["clip.mp4"]},
        {"q": "1 + 1?", "gt": 2, "pic": []},
    )
    first, second, third = load_samples(path, DataConfig(format=KEYS))
    assert (first.question, first.answer) == ("Who?", "Ann")
    assert [(m.kind, m.path.name) for m in first.media] == [("image", "a.png")]
    own = {"q": "<image>Who?", "gt": "Ann", "pic": ["a.png"], "problem": "9", "answer": "Ann"}
    assert dict(first.meta) == {"level": 3, "row": own}  # "problem" is not the question
    assert [(m.kind, m.path.name) for m in second.media] == [("video", "clip.mp4")]
    assert (third.question, third.media) == ("1 + 1?", ())
    # The kept index of a large file is that of these keys.
    (one,) = load_samples(rows(root, {"q": "1?", "problem": "2?", "answer": "3"}))
    assert one.question == "2?"


def test_the_system_prompt_of_a_record(root):
    """It is the record's own, and goes before that of the configuration."""
    path = rows(
        root,
        {"q": "<image>Who?", "answer": "Ann", "images": ["a.png"], "asks": "Be brief."},
        {"q": "1 + 1?", "answer": "2", "asks": None},
    )
    first, second = load_samples(path, DataConfig(format={"prompt_key": "q", "system_key": "asks"}))
    assert [m.role for m in first.messages] == ["system", "user"]
    assert first.messages[0].text == "Be brief."
    assert [m.role for m in second.messages] == ["user"]
    assert "asks" not in first.meta
    prompts = [family().render_prompt(sample, "Think.").text for sample in (first, second)]
    assert "Be brief." in prompts[0]
    assert "Think." not in prompts[0]
    assert "Think." in prompts[1]
    with pytest.raises(ValueError, match="no column 'asked'"):
        load_samples(path, DataConfig(format={"prompt_key": "q", "system_key": "asked"}))
    (plain,) = load_samples(rows(root, {"problem": "1?", "answer": "1", "system": "Be kind."}))
    assert plain.messages[0].text == "Be kind."


def test_named_media_go_before_other_columns_of_media():
    row = {"q": "Who?", "ans": "A", "small": "small.png", "decoded_image": "b.png", "image_1": "c"}
    row |= {"clip": "clip.mp4", "videos": ["other.mp4"]}
    columns = {"problem": "q", "answer": "ans", "images": "small", "videos": "clip"}
    named = renamed(row, columns)
    assert (images_of(named), videos_of(named)) == ("small.png", "clip.mp4")
    assert "decoded_image" in renamed(row, {"problem": "q"})


def test_a_single_key_leaves_the_others_as_they_are(root):
    path = rows(root, {"question": "<image>Who?", "answer": "Ann", "images": ["a.png"]})
    (sample,) = load_samples(path, DataConfig(format={"prompt_key": "question"}))
    assert (sample.question, sample.answer, len(sample.media)) == ("Who?", "Ann", 1)


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ({"question": "a", "gt": "b", "pic": []}, r"no column 'q'; the row has gt, pic, question"),
        ({"q": "a", "gold": "b", "pic": []}, r"no column 'gt'"),
        ({"q": "a", "gt": "b"}, r"no column 'pic'"),
    ],
)
def test_a_column_that_is_not_there_is_named(root, row, said):
    with pytest.raises(ValueError, match=said):
        load_samples(rows(root, row), DataConfig(format=KEYS))


def test_a_format_is_a_name_or_the_names_of_columns():
    columns = DataConfig(format={"prompt_key": "q"})
    assert (columns.columns, columns.format_name) == ({"problem": "q"}, "easyr1")
    assert (DataConfig(format="verl").columns, DataConfig(format="verl").format_name) == (
        {},
        "verl",
    )
