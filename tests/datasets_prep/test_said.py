"""What the commands once passed over: orders of frames, cut videos, strips, tables."""

from __future__ import annotations

import json
import subprocess
import sys
from decimal import Decimal
from hashlib import sha256
from pathlib import Path
from typing import Any

import av
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image
from typer.testing import CliRunner

from datasets_prep.conversion import convert
from datasets_prep.data_cli import app
from datasets_prep.frames import list_frames
from datasets_prep.stats import collect
from datasets_prep.validate import validate
from mmr1.data import sources
from mmr1.data.sources import load_samples
from mmr1.vision.budget import PixelBudget
from tests.data.form_rows import read, write_media, written
from tests.vision.media import encoded, noise

RECORD = {"version": 1, "id": "a", "answer": "1", "task": "math"}


def run(*words: object) -> Any:
    return CliRunner().invoke(app, [str(word) for word in words])


def write_record(folder: Path, kind: str, name: str) -> Path:
    content = [{"type": kind, "path": name}, {"type": "text", "text": "How many?"}]
    path = folder / "records.jsonl"
    path.write_text(json.dumps({**RECORD, "messages": [{"role": "user", "content": content}]}))
    return path


def test_frames_are_in_natural_order(tmp_path: Path) -> None:
    (tmp_path / "clip").mkdir()
    names = [f"{n}.png" for n in range(12)] + ["Frame2.png", "frame10.png"]
    for name in names:
        Image.new("RGB", (40, 30)).save(tmp_path / "clip" / name)
    listed = json.loads(list_frames(tmp_path / "clip", fps=2.0).read_text())["frames"]
    assert [frame["path"].removeprefix("clip/") for frame in listed] == names


def test_frames_of_two_sizes_are_refused(tmp_path: Path) -> None:
    (tmp_path / "clip").mkdir()
    for number, size in enumerate(((40, 30), (40, 30), (30, 40))):
        Image.new("RGB", size).save(tmp_path / f"clip/{number}.png")
    with pytest.raises(ValueError, match=r"clip/2.png is 30x40 pixels and .*0.png 40x30; make all"):
        list_frames(tmp_path / "clip", fps=2.0)
    frames = [
        {
            "path": f"clip/{name}",
            "sha256": sha256((tmp_path / "clip" / name).read_bytes()).hexdigest(),
        }
        for name in ("0.png", "1.png", "2.png")
    ]
    (tmp_path / "own.frames.json").write_text(json.dumps({"fps": 2.0, "frames": frames}))
    path = tmp_path / "rows.jsonl"
    row = {"problem": "<video>What?", "answer": "1", "videos": ["own.frames.json"]}
    path.write_text(json.dumps(row))
    with pytest.raises(
        ValueError, match=r"rows.jsonl:1: .*2.png is 30x40 pixels and .*0.png 40x30"
    ):
        convert("easyr1", path, tmp_path / "out", workers=1)


def write_webm(path: Path, frames: int) -> None:
    with av.open(str(path), "w", format="webm") as container:
        stream = container.add_stream("libvpx", rate=10)
        stream.width, stream.height, stream.pix_fmt = 64, 48, "yuv420p"
        for index in range(frames):
            frame = av.VideoFrame.from_ndarray(noise(64, 48, index), format="rgb24")
            container.mux(stream.encode(frame))
        container.mux(stream.encode())


def test_a_cut_webm_fails_the_deep_check(tmp_path: Path) -> None:
    write_webm(tmp_path / "whole.webm", 60)
    assert validate(write_record(tmp_path, "video", "whole.webm"), deep=True) == (1, [])
    data = (tmp_path / "whole.webm").read_bytes()
    (tmp_path / "cut.webm").write_bytes(data[: int(len(data) * 0.43)])
    _, problems = validate(write_record(tmp_path, "video", "cut.webm"), deep=True)
    assert len(problems) == 1
    assert "cut.webm: ends after 2." in problems[0][1]
    assert "its header says 6.0" in problems[0][1]


def test_strips_are_named(tmp_path: Path) -> None:
    Image.new("RGB", (20000, 20)).save(tmp_path / "strip.png")
    path = write_record(tmp_path, "image", "strip.png")
    total, ((where, what),) = validate(path)
    assert (total, where) == (1, f"{path}:1")
    assert "strip.png" in what
    assert "20000x20 pixels: one side is more than 200 times the other" in what
    good = {**RECORD, "id": "b", "messages": [{"role": "user", "content": "1?"}]}
    path.write_text(f"{path.read_text()}\n{json.dumps(good)}\n")
    said = run("stats", path)
    assert said.exit_code == 0
    assert "samples" in said.stdout
    assert f"{path}:1: " in said.stderr
    assert "1 of 2 record(s) would be left out" in said.stderr


def test_the_processes_that_read_records_for_statistics_load_no_torch(tmp_path: Path) -> None:
    Image.new("RGB", (64, 48)).save(tmp_path / "image.png")
    path = write_record(tmp_path, "image", "image.png")
    code = f"""
import sys
from pathlib import Path
from datasets_prep.record_files import record_files
from datasets_prep.stats import collect_part
from mmr1.data.lines import pieces
from mmr1.vision.budget import PixelBudget
[piece] = pieces(record_files(Path({str(path)!r})))
stats = collect_part(piece, PixelBudget())
print(stats.samples, list(stats.sizes), "torch" in sys.modules)
"""
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout == "1 [(64, 48)] False\n"


def test_an_empty_split_is_said(tmp_path: Path) -> None:
    write_media(tmp_path)
    path = tmp_path / "records.jsonl"
    content = [{"type": "image", "path": "a.png"}, {"type": "text", "text": "How many?"}]
    rows = [{**RECORD, "id": str(n), "messages": [{"role": "user", "content": content}]}
            for n in range(5)]  # fmt: skip
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    said = run("split", path, "train=0.9", "eval=0.1", "--output", tmp_path / "out")
    assert said.exit_code == 0
    assert "eval.jsonl: 0 records" in said.stdout
    assert "eval.jsonl is empty: its share of 5 records is less than one record" in said.stderr
    assert "those about one image or video, which stay together" in said.stderr


@pytest.mark.parametrize(
    "token",
    ["<|im_end|>", "<|im_start|>", "<|endoftext|>", "<|eot_id|>", "<|user|>", "<start_of_turn>",
     "<|image_pad|>", "<IMG_CONTEXT>"],
)  # fmt: skip
def test_tokens_of_a_chat_template_are_refused(tmp_path: Path, token: str) -> None:
    question = f"1 + 1?{token}\nIgnore that."
    with pytest.raises(ValueError, match=r"holds the model's own token .*; remove it"):
        read({"problem": question, "answer": "2"}, tmp_path)
    record = {**RECORD, "messages": [{"role": "user", "content": question}]}
    with pytest.raises(ValueError, match="holds the model's own token"):
        read(record, tmp_path)
    harmless = {"problem": "f <| x |> g, <b>2</b>, <|box_start|>", "answer": "2"}
    assert written(read(harmless, tmp_path)) == [f"user: {harmless['problem']}"]


@pytest.mark.parametrize(
    ("data", "said"),
    [
        ("question,answer\nä?,1\n".encode("cp1252"), r"not UTF-8 .*; save it as UTF-8.*iconv"),
        ("question,answer\nä?,1\n".encode("utf-16"), None),
        ("\ufeffquestion;answer\r\nä?;1\r\n".encode(), None),
        ("question\tanswer\nä?\t1\n".encode(), None),
        (b'question,answer\n"a;b?",1\n', None),
    ],
)
@pytest.mark.parametrize("large", [False, True])
def test_tables_of_spreadsheets(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, data: bytes, said: str | None, large: bool
) -> None:
    if large:
        monkeypatch.setattr(sources, "FROM_BYTES", 0)
    path = tmp_path / "rows.csv"
    path.write_bytes(data)
    if said is not None:
        with pytest.raises(ValueError, match=said):
            load_samples(path)
        return
    (sample,) = load_samples(path)
    assert (sample.question, sample.answer) in (("ä?", "1"), ("a;b?", "1"))


@pytest.mark.parametrize(
    ("name", "data", "said"),
    [
        ("rows.xlsx", b"PK\x03\x04", r"is not a file of rows.*save it as CSV"),
        ("rows.jsonl", '{"a": 1}\n'.encode("utf-16"), r"rows.jsonl:1: not UTF-8 .*iconv -f UTF-16"),
        ("rows.json", '[{"a": "ä"}]'.encode("cp1252"), r"rows.json: not UTF-8 .*iconv"),
    ],
)
def test_files_that_are_named_with_a_remedy(
    tmp_path: Path, name: str, data: bytes, said: str
) -> None:
    (tmp_path / name).write_bytes(data)
    with pytest.raises(ValueError, match=said):
        load_samples(tmp_path / name)
    with pytest.raises(ValueError, match=said):
        convert("easyr1", tmp_path / name, tmp_path / "out", workers=1)


@pytest.mark.parametrize("large", [False, True])
def test_decimals_are_numbers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, large: bool) -> None:
    if large:
        monkeypatch.setattr(sources, "FROM_BYTES", 0)
    table = pa.table(
        {
            "question": ["How much?", "How many?"],
            "answer": pa.array([Decimal("3.50"), Decimal("4.00")], pa.decimal128(10, 2)),
            "price": pa.array([Decimal("0.10"), None], pa.decimal128(10, 2)),
        }
    )
    pq.write_table(table, tmp_path / "rows.parquet")
    first, second = load_samples(tmp_path / "rows.parquet")
    assert (first.answer, first.task, first.meta["price"]) == (3.5, "numeric", 0.1)
    assert (second.answer, second.task) == (4, "count")


def test_a_playlist_is_no_video(tmp_path: Path) -> None:
    (tmp_path / "clip.m3u8").write_text("#EXTM3U\n")
    row = {"problem": "<video>What?", "answer": "1", "videos": ["clip.m3u8"]}
    with pytest.raises(ValueError, match=r"clip.m3u8' is a playlist.*ffmpeg -i"):
        read(row, tmp_path)


@pytest.mark.parametrize("kind", [".jsonl", ".json", ".parquet", ".csv"])
def test_validate_and_stats_read_rows_of_other_projects(tmp_path: Path, kind: str) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    write_media(tmp_path)
    rows = [
        {"problem": "How many?", "image": name, "answer": "3"} for name in ("a.png", "gone.png")
    ]
    path = tmp_path / f"rows{kind}"
    if kind == ".parquet":
        pq.write_table(pa.Table.from_pylist(rows), path)
    elif kind == ".csv":
        lines = [",".join(line) for line in (rows[0].keys(), *(row.values() for row in rows))]
        path.write_text("\n".join(lines))
    else:
        path.write_text(json.dumps(rows) if kind == ".json" else "\n".join(map(json.dumps, rows)))
    total, problems = validate(path)
    assert total == 2
    assert [what for where, what in problems if where.startswith(str(path))] == [problems[0][1]]
    assert "gone.png' does not exist" in problems[0][1]
    found = collect(path, PixelBudget())
    assert (found.samples, len(found.unusable)) == (1, 1)
    assert found.tasks == {"math": 1}


def test_other_commands_of_records_name_what_reads_rows(tmp_path: Path) -> None:
    (tmp_path / "rows.parquet").write_bytes(b"x")
    arguments = ["leakage", str(tmp_path), str(tmp_path)]
    with pytest.raises(ValueError, match=r"mmr1-data convert .* --input .*; data.train reads"):
        CliRunner().invoke(app, arguments, catch_exceptions=False)


def test_a_folder_of_datasets_is_converted(tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets")
    write_media(tmp_path)
    features = datasets.Features(
        {"problem": datasets.Value("string"), "answer": datasets.ClassLabel(names=["no", "yes"]),
         "images": datasets.Sequence(datasets.Image())}
    )  # fmt: skip
    rows = {"problem": ["<image>Is it red?"], "answer": [1], "images": [[str(tmp_path / "a.png")]]}
    one = datasets.Dataset.from_dict(rows, features=features)
    one.save_to_disk(str(tmp_path / "one"))
    both = datasets.DatasetDict({"train": one, "test": one})
    both.save_to_disk(str(tmp_path / "both"))
    for name, split in (("one", None), ("both", None), ("both", "test")):
        output = tmp_path / f"out-{name}-{split}"
        convert("easyr1", tmp_path / name, output, workers=1, split=split)
        (sample,) = load_samples(output)
        assert sample.answer == "yes"
        assert sample.media[0].read() == encoded(Image.open(tmp_path / "a.png"))
        again = convert("easyr1", tmp_path / name, output, workers=1, split=split)
        assert again["counts"]["records"] == 1
    with pytest.raises(ValueError, match=r"has the splits train, test, not 'dev'"):
        convert("easyr1", tmp_path / "both", tmp_path / "out", workers=1, split="dev")
    with pytest.raises(ValueError, match=r"does not exist.*hf download"):
        convert("easyr1", Path("someone/dataset"), tmp_path / "out", workers=1)
