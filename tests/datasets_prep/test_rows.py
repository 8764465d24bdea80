"""The general route: rows of any format, their columns named by the user; pickles of refs."""

from __future__ import annotations

import json
import os
import pickle
from pathlib import Path
from typing import Any

import pytest
from PIL import Image
from typer.testing import CliRunner

from datasets_prep.conversion import convert
from datasets_prep.converters.boxes import read_refs
from datasets_prep.converters.rows import converter_of, mapping
from datasets_prep.data_cli import app
from mmr1.config import DataConfig
from mmr1.data.forms import read_row
from mmr1.data.forms.form import Place
from mmr1.data.sources import load_samples
from tests.data.form_rows import write_media, written
from tests.vision.media import encoded


@pytest.fixture
def root(tmp_path: Path) -> Path:
    write_media(tmp_path)
    return tmp_path


def convert_rows(root: Path, rows: list[dict[str, Any]], text: str) -> list[Any]:
    (root / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    convert("rows", root / "rows.jsonl", root / "out", workers=1, columns=mapping(text))
    return load_samples(root / "out")


def test_columns_of_any_name(root: Path) -> None:
    row = {"ques": "Which?", "gold": "b", "img": "a.png", "opts": ["a", "b"], "level": 3}
    text = "question=ques,answer=gold,image=img,options=opts"
    (sample,) = convert_rows(root, [row], text)
    assert sample.question == "Which?\nA. a\nB. b"
    assert (sample.answer, sample.task) == ("B", "choice")
    assert sample.meta == {"options": ["a", "b"], "level": 3}
    assert sample.media[0].read() == (root / "a.png").read_bytes()


@pytest.mark.parametrize(
    ("row", "task", "answer"),
    [
        ({"q": "How many?", "a": 4}, "count", 4),
        ({"q": "Is it?", "a": True}, "exact", "yes"),
        ({"q": "x?", "a": "<answer>5</answer>"}, "math", "5"),
        ({"q": "x?", "a": 2.5, "t": "regression"}, "regression", 2.5),
        ({"q": "Box?", "a": [1, 2, 30, 20], "i": "a.png", "t": "iou"}, "iou", [[1, 2, 30, 20]]),
        ({"q": "When?", "a": [0.5, 1.5], "v": "clip.mp4", "t": "tiou"}, "tiou", [0.5, 1.5]),
    ],
)
def test_the_answer_tells_its_task_or_a_column_does(
    root: Path, row: dict[str, Any], task: str, answer: Any
) -> None:
    names = {"q": "question", "a": "answer", "t": "task", "i": "image", "v": "video"}
    (sample,) = convert_rows(root, [row], ",".join(f"{names[k]}={k}" for k in row))
    assert (sample.task, sample.answer) == (task, answer)


def test_one_task_for_all_rows(root: Path) -> None:
    (sample,) = convert_rows(root, [{"q": "?", "a": "4"}], "question=q,answer=a,task=count")
    assert (sample.task, sample.answer) == ("count", "4")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("question", "'question' is not of the form FIELD=COLUMN"),
        ("questoin=q", r"unknown field 'questoin' \(did you mean 'question'\?\)"),
        ("answer=a", "names no question"),
        ("question=q,answer=a,answer=b", "answer has two columns"),
    ],
)
def test_mappings_that_are_none(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        mapping(text)


@pytest.mark.parametrize(
    "named", ["image=left_image,image=right_image", "image=left_image,right_image"]
)
def test_several_columns_are_the_pictures_in_order(root: Path, named: str) -> None:
    for name in ("left", "right"):
        (root / f"{name}.png").write_bytes(encoded(Image.new("RGB", (30, 30), "red")))
    row = {"q": "Same?", "a": "no", "right_image": "right.png", "left_image": "left.png"}
    (root / "two.jsonl").write_text(json.dumps(row))
    columns = mapping(f"question=q,answer=a,{named}")
    converter = converter_of("rows", columns)
    (sample,) = converter.convert(row, Place(root, "s", 0))
    assert [media.path.name for media in sample.media if media.path] == ["left.png", "right.png"]
    keys = {"prompt_key": "q", "answer_key": "a", "image_key": "left_image,right_image"}
    (read,) = load_samples(root / "two.jsonl", DataConfig(format=keys))
    assert [media.path for media in read.media] == [media.path for media in sample.media]


def test_rows_that_lack_a_column(root: Path) -> None:
    for row, message in (
        ({"q": "?", "b": "1"}, r"no column 'a' for the answer.*the row has q, b"),
        ({"q": "?", "a": None}, r"the answer \(column 'a'\) is empty"),
        ({"q": "?", "a": ["1", "2"]}, "is not a single text or number"),
        ({"q": "", "a": "1"}, "no question"),
    ):
        with pytest.raises(ValueError, match=message):
            convert_rows(root, [row], "question=q,answer=a")


def test_the_error_proposes_the_command(root: Path) -> None:
    row = {"ques": "Which?", "gold": "b", "img": "x/a.png", "label": "b", "level": 3}
    proposed = "question=ques,answer=label,image=img"
    with pytest.raises(ValueError, match=rf"mmr1-data convert rows .* --map {proposed}"):
        read_row(row, Place(root, "s", 0))
    clip = {"instruction": "What?", "gt": "1", "where": {"path": "x.mp4", "bytes": None}}
    with pytest.raises(ValueError, match="look like question=instruction,answer=gt,video=where"):
        read_row(clip, Place(root, "s", 0))
    (root / "rows.jsonl").write_text(json.dumps(row))
    with pytest.raises(ValueError, match=rf"the first: .*these .*look like {proposed}"):
        convert("rows", root / "rows.jsonl", root / "out")
    with pytest.raises(ValueError, match="--map is for the converter 'rows'"):
        convert("easyr1", root / "rows.jsonl", root / "out", columns={"question": "ques"})


def test_the_command_line(root: Path) -> None:
    (root / "rows.csv").write_text("ques,gold,img\nHow many?,4,a.png\n")
    arguments = ["convert", "rows", "--input", root / "rows.csv", "--output", root / "out"]
    named = ["--map", "question=ques,answer=gold,image=img,task=count", "--workers", "1"]
    result = CliRunner().invoke(app, [*map(str, arguments), *named], catch_exceptions=False)
    assert result.exit_code == 0
    (sample,) = load_samples(root / "out")
    assert written(sample)[0].endswith("]How many?")
    assert (sample.answer, sample.task) == ("4", "count")


def test_rows_that_name_their_split(root: Path) -> None:
    rows = [{"problem": f"{s}?", "answer": "1", "split": s} for s in ("train", "val", "train")]
    (root / "in").mkdir()
    file = root / "in/rows.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    with pytest.raises(ValueError, match=r"rows of several splits \(train, val, …\); name one"):
        convert("easyr1", file, root / "merged", workers=1)
    for source in (file, root / "in"):  # the file's name tells no split
        output = root / f"of {source.name}"
        convert("easyr1", source, output, workers=1, split="train")
        assert [s.question for s in load_samples(output)] == ["train?", "train?"]
    with pytest.raises(ValueError, match=r"no row is of the split 'test'; the rows name train, v"):
        convert("easyr1", file, root / "none", workers=1, split="test")


def test_a_pickle_of_refs_runs_no_code(root: Path) -> None:
    class Payload:
        def __reduce__(self) -> tuple[Any, ...]:
            return (os.system, (f"touch {root / 'ran'}",))

    path = root / "refs(unc).p"
    path.write_bytes(pickle.dumps([{"ref_id": Payload()}]))
    with pytest.raises(ValueError, match="not a pickle of plain values: it names the code posix"):
        read_refs(path)
    assert not (root / "ran").exists()
    path.write_bytes(pickle.dumps({"a": 1}))
    with pytest.raises(ValueError, match="not a list of referring expressions"):
        read_refs(path)
