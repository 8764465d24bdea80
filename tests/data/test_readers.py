"""Files and folders of every kind that rows come in, and what is said of those that are none."""

from __future__ import annotations

import base64
import gzip
import json
import os
import socket
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import datasets
import pytest

from datasets_prep.conversion import convert
from mmr1.data.readers import check_dataset, kind_of, read_rows
from mmr1.data.readers.splits import split_of
from mmr1.data.sources import load_samples
from tests.data.form_rows import write_media, written

ROWS = [{"problem": f"{i}+1?", "answer": str(i + 1)} for i in range(3)]


@pytest.fixture
def root(tmp_path: Path) -> Path:
    write_media(tmp_path)
    return tmp_path


def lines(rows: list[Any]) -> str:
    return "".join(json.dumps(row) + "\n" for row in rows)


def rows_of(spec: str | Path) -> list[Any]:
    return [row for _, row in read_rows(spec)]


@pytest.mark.parametrize("name", ["r.jsonl", "r.jsonl.gz", "r.json", "r.json.gz", "list.json"])
def test_json_in_every_wrapping(root: Path, name: str) -> None:
    text = (json.dumps(ROWS) if name == "list.json" else lines(ROWS)).encode()
    (root / name).write_bytes(gzip.compress(text) if name.endswith("gz") else text)
    assert rows_of(root / name) == ROWS
    assert [s.answer for s in load_samples(root / name)] == ["1", "2", "3"]


def test_json_objects_that_hold_their_rows(root: Path) -> None:
    for content, expected in (
        ({"info": {"split": "new"}, "questions": ROWS}, ROWS),
        ({"data": ROWS, "version": 2}, ROWS),
        ({"a": ROWS[0]}, [{"id": "a", **ROWS[0]}]),
        (ROWS[0], ROWS[:1]),
    ):
        (root / "r.json").write_text(json.dumps(content))
        assert rows_of(root / "r.json") == expected
    (root / "r.json").write_text(json.dumps({"images": [], "annotations": [], "categories": []}))
    with pytest.raises(ValueError, match=r"r\.json is in COCO form; .*mmr1-data convert coco"):
        rows_of(root / "r.json")


def test_broken_archives(root: Path) -> None:
    (root / "r.jsonl.gz").write_bytes(gzip.compress(lines(ROWS * 50).encode())[:60])
    with pytest.raises(ValueError, match=r"r\.jsonl\.gz: cannot be read to its end"):
        rows_of(root / "r.jsonl.gz")
    (root / "r.tar").write_bytes(b"no archive")
    with pytest.raises(ValueError, match=r"r\.tar: is not a file of rows; .* unpack it"):
        rows_of(root / "r.tar")


def test_tables_of_vlmevalkit(root: Path) -> None:
    """Pictures in base64, written once: the second row names that of the first by its index."""
    picture = base64.b64encode((root / "a.png").read_bytes()).decode()
    table = (
        "index\timage\tquestion\tA\tB\tanswer\thint\n"
        f"7\t{picture}\tWhich colour?\tred\tblue\tA\t\n"
        '8\t7\t"How\nnow?"\tred\tblue\tB\tLook.\n'
    )
    (root / "t.tsv").write_text(table)
    first, second = rows_of(root / "t.tsv")
    assert first["image"] == second["image"] == picture
    assert (first["hint"], second["question"]) == (None, "How\nnow?")
    (root / "t.csv").write_text("problem,answer\n1+1?,2\nand,a,third\n")
    good, bad = rows_of(root / "t.csv")
    assert good == {"problem": "1+1?", "answer": "2"}
    assert "1 field(s) more than the header" in str(bad)


# Folders -----------------------------------------------------------------------------------------


def write_folder(folder: Path, *names: str) -> Path:
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(lines([{"problem": name, "answer": "1"}]))
    return folder


def problems(spec: str | Path) -> list[str]:
    return [row["problem"] for row in rows_of(spec)]


def test_the_splits_of_a_folder_stay_apart(root: Path) -> None:
    folder = write_folder(root / "f", "train.jsonl", "test.jsonl")
    assert problems(folder) == ["train.jsonl"]
    assert problems(f"{folder}@test") == ["test.jsonl"]
    with pytest.raises(ValueError, match=r"no split 'val' \(test: test.jsonl; train: train.jsonl"):
        rows_of(f"{folder}@val")
    hub = write_folder(
        root / "h", "data/train-00000-of-00002.jsonl", "data/train-00001-of-00002.jsonl",
        "data/validation-00000-of-00001.jsonl",
    )  # fmt: skip
    assert len(problems(hub)) == 2
    assert problems(f"{hub}@val") == ["data/validation-00000-of-00001.jsonl"]
    unclear = write_folder(root / "u", "train.jsonl", "more.jsonl")
    with pytest.raises(ValueError, match=r"several splits \(others: more.jsonl; train: train"):
        rows_of(unclear)
    assert problems(f"{unclear}@train") == ["train.jsonl"]
    no_train = write_folder(root / "n", "val.jsonl", "test.jsonl")
    with pytest.raises(ValueError, match=r"several splits .* name one, as .*n@SPLIT"):
        rows_of(no_train)


def test_one_kind_of_file_in_a_folder(root: Path) -> None:
    folder = write_folder(root / "f", "rows.jsonl", "rows.csv")
    with pytest.raises(ValueError, match=r"holds \.csv and \.jsonl files .* the same rows twice"):
        rows_of(folder)


def test_the_output_of_a_conversion_is_training_data(root: Path) -> None:
    row = {"problem": "<image>?", "images": ["a.png"], "answer": "1"}
    bad = {"problem": "<image>?", "images": ["none.png"], "answer": "1"}
    (root / "rows.jsonl").write_text(lines([row, bad]))
    convert("easyr1", root / "rows.jsonl", root / "out", workers=1)
    check_dataset(str(root / "out"), "data.train")
    (sample,) = load_samples(root / "out")
    assert sample.media[0].read() == (root / "a.png").read_bytes()


@pytest.mark.parametrize(
    ("name", "split"),
    [
        ("geoqa_train.jsonl", "train"),
        ("charades_test_ood.json", "test"),
        ("refcoco_val.json", "validation"),
        ("dev-00.parquet", "validation"),
        ("testmini-00000-of-00001.parquet", "testmini"),
        ("val/12/data.json", "validation"),
        ("train_2k5.json", "train"),
        ("latest.jsonl", "others"),
        ("trainer.jsonl", "others"),
        ("value.jsonl", "others"),
    ],
)
def test_names_of_splits(name: str, split: str) -> None:
    assert split_of(Path("root") / name, Path("root")) == split


# What is none ------------------------------------------------------------------------------------


def test_a_split_that_is_not_there(root: Path) -> None:
    hub = datasets.Dataset.from_list(ROWS)
    datasets.DatasetDict({"train": hub, "test": hub}).save_to_disk(root / "disk")
    with pytest.raises(ValueError, match="has the splits train, test, not 'val'"):
        rows_of(f"{root / 'disk'}@val")
    datasets.DatasetDict({"a": hub, "b": hub}).save_to_disk(root / "ab")
    with pytest.raises(ValueError, match=r"has the splits a, b, not 'train'; name one, as .*ab@a"):
        rows_of(root / "ab")
    datasets.DatasetDict({"test": hub}).save_to_disk(root / "only")
    assert len(rows_of(root / "only")) == 3
    hub.save_to_disk(root / "bare")
    with pytest.raises(ValueError, match="has no splits; leave out '@val'"):
        rows_of(f"{root / 'bare'}@val")


def test_a_missing_extension_is_told_without_the_hub(root: Path) -> None:
    (root / "train.jsonl").write_text(lines(ROWS))
    (root / "rows.xlsx").write_text("")
    for spec, message in (
        (root / "train", r"no such file or folder; did you mean .*train\.jsonl\?"),
        (root / "rows.xlsx", r"is not a file of rows; known are \.jsonl, "),
        (f"{root / 'train.jsonl'}@val", "a file has no split 'val'"),
        (root / "nothing", "no such file or folder; check the path"),
    ):
        with pytest.raises(ValueError, match=message):
            rows_of(spec)
        with pytest.raises(ValueError, match=message):
            check_dataset(str(spec), "data.train")


def test_a_hub_that_does_not_answer_is_asked_once(root: Path) -> None:
    connections = []
    online = {k: v for k, v in os.environ.items() if not k.endswith("_OFFLINE")}

    def serve() -> None:
        while True:
            try:
                connection, _ = server.accept()
            except OSError:
                return
            connections.append(1)
            connection.close()

    with socket.create_server(("127.0.0.1", 0)) as server:
        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        result = subprocess.run(
            [sys.executable, "-c", "from mmr1.data.readers import read_rows\n"
             "try: list(read_rows('owner/rows'))\nexcept ValueError as error: print(error)"],
            env={**online, "HF_ENDPOINT": f"http://127.0.0.1:{server.getsockname()[1]}",
                 "HF_HOME": str(root / "cache"), "NO_PROXY": "*"},
            capture_output=True, text=True, check=True,
        )  # fmt: skip
        server.shutdown(socket.SHUT_RDWR)
    assert "'owner/rows' is neither a file nor a folder nor a dataset of the hub" in result.stdout
    assert "the hub cannot be reached" in result.stdout
    assert len(connections) == 1


def test_video_features_stay_encoded(root: Path) -> None:
    clip, picture = (root / "clip.mp4").read_bytes(), (root / "a.png").read_bytes()
    features = datasets.Features(
        problem=datasets.Value("string"),
        answer=datasets.Value("string"),
        video=datasets.Video(decode=False),
        images=datasets.List(datasets.Image(decode=False)),
    )
    row = {
        "problem": "<video>What, <image>?", "answer": "1",
        "video": {"bytes": clip, "path": None}, "images": [{"bytes": picture, "path": None}],
    }  # fmt: skip
    dataset = datasets.Dataset.from_list([row], features=features)
    dataset.save_to_disk(root / "disk")
    state = root / "disk/dataset_info.json"  # saved by others with decoding on
    state.write_text(state.read_text().replace('"decode": false', '"decode": true'))
    (sample,) = load_samples(root / "disk")
    assert written(sample) == ["user: [bytes]What, [bytes]?"]
    assert [ref.read() for ref in sample.media] == [clip, picture]


def test_kinds() -> None:
    assert kind_of("a/b.JSONL.gz") == ".jsonl.gz"
    assert kind_of("a/.jsonl") is None
    assert kind_of("a.jsonl@val") is None
