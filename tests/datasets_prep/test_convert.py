"""Conversion: byte-identical however it was interrupted and however many work on it."""

from __future__ import annotations

import hashlib
import http.server
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from datasets_prep.conversion import convert
from datasets_prep.manifest import content_hashes
from datasets_prep.validate import validate
from mmr1.data.sources import load_samples
from tests.jsonl import read_jsonl
from tests.vision.media import encoded, noise


def _sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def dataset(folder: Path, rows: int, side: int = 40) -> Path:
    """EasyR1 rows, every tenth of them without its picture, every thirteenth broken."""
    (folder / "images").mkdir(parents=True)
    with (folder / "train.jsonl").open("w") as file:
        for index in range(rows):
            name = f"images/{index}.png"
            if index % 10:
                (folder / name).write_bytes(encoded(Image.fromarray(noise(side, side, index))))
            row = {"problem": f"<image>Question {index}?", "images": [name], "answer": str(index)}
            file.write("{broken\n" if index % 13 == 12 else json.dumps(row) + "\n")
    return folder


def everything(folder: Path) -> dict[str, str]:
    hashes = content_hashes(folder)
    assert not [name for name in hashes if ".parts" in name or "tmp" in name]
    return {**hashes, "manifest.json": _sha256(folder / "manifest.json")}


def test_counts_names_and_reasons(tmp_path: Path) -> None:
    source = dataset(tmp_path / "in", 130)
    manifest = convert("easyr1", source, tmp_path / "out", workers=1)
    assert manifest["counts"] == {"rows": 130, "records": 108, "dropped": 22}
    assert manifest["dropped"] == {
        "media file '…' does not exist under …": 12,
        "not valid JSON (object keys must be strings at byte N: '…')": 10,
    }
    dropped = read_jsonl(tmp_path / "out/quarantine.jsonl")
    assert dropped[0]["row"] == f"{source / 'train.jsonl'}:1"
    assert "'images/0.png' does not exist" in dropped[0]["reason"]
    assert validate(tmp_path / "out") == (108, [])
    assert manifest["plan"]["inputs"] == {"train.jsonl": _sha256(source / "train.jsonl")}


def test_half_of_a_surrogate_pair_in_a_key_drops_its_row_alone(tmp_path: Path) -> None:
    source = dataset(tmp_path / "in", 3)
    with (source / "train.jsonl").open("a") as file:
        file.write('{"a\\ud800": 1}\n')
    columns = {"question": "problem", "answer": "answer", "image": "images"}
    manifest = convert("rows", source, tmp_path / "out", workers=1, columns=columns)
    assert manifest["counts"] == {"rows": 4, "records": 2, "dropped": 2}
    assert "surrogate" in read_jsonl(tmp_path / "out/quarantine.jsonl")[1]["reason"]


def test_nothing_of_the_dropped_pictures_is_replaced(tmp_path: Path) -> None:
    source = dataset(tmp_path / "in", 40)
    convert("easyr1", source, tmp_path / "out", workers=1)
    for sample in load_samples(tmp_path / "out/records.jsonl"):
        index = int(sample.answer)
        assert sample.media[0].read() == (source / f"images/{index}.png").read_bytes()
        assert sample.media[0].size == (40, 40)


def test_media_have_a_second_name_where_that_can_be(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = dataset(tmp_path / "in", 20)
    convert("easyr1", source, tmp_path / "out", workers=1)
    stored = [sample.media[0].path for sample in load_samples(tmp_path / "out/records.jsonl")]
    assert all(any(p.samefile(own) for own in (source / "images").iterdir()) for p in stored)

    def no_links(*_: object) -> None:
        raise OSError("another file system")

    with monkeypatch.context() as patch:
        patch.setattr("datasets_prep.finish.os.link", no_links)
        patch.setattr("mmr1.files._unnamed", lambda *_: None)  # which links too
        convert("easyr1", source, tmp_path / "copied", workers=1)
    assert everything(tmp_path / "out") == everything(tmp_path / "copied")
    shutil.rmtree(source)
    assert validate(tmp_path / "out") == (len(stored), [])


def test_any_number_of_workers_and_embedding(tmp_path: Path) -> None:
    source = dataset(tmp_path / "in", 150)
    convert("easyr1", source, tmp_path / "one", workers=1)
    convert("easyr1", source, tmp_path / "three", workers=3)
    assert everything(tmp_path / "one") == everything(tmp_path / "three")
    convert("easyr1", source, tmp_path / "inside", workers=1, embed=True)
    assert not (tmp_path / "inside/media").exists()
    beside = load_samples(tmp_path / "one/records.jsonl")
    inside = load_samples(tmp_path / "inside/records.jsonl")
    assert [s.id for s in inside] == [s.id for s in beside]
    assert [s.media[0].read() for s in inside] == [s.media[0].read() for s in beside]


@pytest.mark.slow
def test_killed_five_times_at_random_and_byte_identical(tmp_path: Path) -> None:
    source = dataset(tmp_path / "in", 700, side=64)
    convert("easyr1", source, tmp_path / "undisturbed", workers=2)
    command = [
        sys.executable, "-m", "datasets_prep", "convert", "easyr1", "--input", source,
        "--output", tmp_path / "disturbed", "--workers", "2",
    ]  # fmt: skip
    rng = random.Random(os.getpid())
    progress = [0]
    for _ in range(5):
        run = subprocess.Popen(command, start_new_session=True, stderr=subprocess.DEVNULL)
        outcome_files = tmp_path / "disturbed/.parts"
        target = progress[-1] + rng.randint(0, 2)
        deadline = time.monotonic() + 60
        while len(list(outcome_files.glob("0*.json"))) < target and time.monotonic() < deadline:
            time.sleep(0.001)
        time.sleep(rng.uniform(0, 0.05))
        os.kill(run.pid, signal.SIGKILL)
        run.wait()
        progress.append(len(list(outcome_files.glob("0*.json"))))
        assert not (tmp_path / "disturbed/manifest.json").exists()
    assert progress == sorted(progress), "a later run continues where an earlier one stopped"
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    assert everything(tmp_path / "disturbed") == everything(tmp_path / "undisturbed")


def test_done_is_left_alone_and_something_else_refused(tmp_path: Path) -> None:
    source = dataset(tmp_path / "in", 20)
    convert("easyr1", source, tmp_path / "out", workers=1)
    stamp = (tmp_path / "out/records.jsonl").stat().st_mtime_ns
    convert("easyr1", source, tmp_path / "out", workers=1)
    assert (tmp_path / "out/records.jsonl").stat().st_mtime_ns == stamp
    with pytest.raises(ValueError, match="holds a conversion with another embed"):
        convert("easyr1", source, tmp_path / "out", workers=1, embed=True)
    (tmp_path / "made").mkdir()
    (tmp_path / "made/manifest.json").write_text('{"name": "digits"}')
    with pytest.raises(ValueError, match="made holds something else; remove it"):
        convert("easyr1", source, tmp_path / "made", workers=1)
    (tmp_path / "half/.parts").mkdir(parents=True)
    (tmp_path / "half/.parts/plan.json").write_text("{}")
    (tmp_path / "half/.parts/000000.json").write_text("{}")
    with pytest.raises(ValueError, match="an unfinished conversion of something else"):
        convert("easyr1", source, tmp_path / "half", workers=1)
    (tmp_path / "notes.txt").write_text("no rows")
    with pytest.raises(ValueError, match=r"notes.txt: is not a file of rows; .*\.tsv$"):
        convert("easyr1", tmp_path / "notes.txt", tmp_path / "again", workers=1)
    convert("easyr1", source, tmp_path / "again", workers=1)
    with pytest.raises(ValueError, match=r"unknown dataset .* \(did you mean 'easyr1'"):
        convert("easyrl", source, tmp_path / "x")
    with pytest.raises(ValueError, match="does not exist"):
        convert("easyr1", tmp_path / "none", tmp_path / "x")
    (tmp_path / "bare").mkdir()
    with pytest.raises(ValueError, match="holds none of the annotation files of 'easyr1'"):
        convert("easyr1", tmp_path / "bare", tmp_path / "x")


@pytest.fixture
def web(tmp_path: Path) -> Iterator[tuple[str, list[str]]]:
    """A web server on this machine with a picture, and one that sends elsewhere."""
    requested: list[str] = []

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            requested.append(self.path)
            if self.path == "/away.png":
                self.send_response(302)
                self.send_header("Location", "http://elsewhere.invalid/a.png")
                self.end_headers()
                return
            self.send_response(200)
            self.end_headers()
            self.wfile.write(encoded(Image.fromarray(np.zeros((30, 30, 3), np.uint8))))

        def log_message(self, *_: object) -> None:
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}", requested
    server.shutdown()
    server.server_close()


def test_remote_media_only_from_named_hosts(tmp_path: Path, web: tuple[str, list[str]]) -> None:
    address, requested = web
    source = tmp_path / "rows.jsonl"

    def write(name: str) -> None:
        row = {"problem": "<image>?", "images": [f"{address}/{name}"], "answer": "1"}
        source.write_text(json.dumps(row))

    write("a.png")
    with pytest.raises(ValueError, match=r"allow the host with --allow-host 127\.0\.0\.1"):
        convert("easyr1", source, tmp_path / "off", workers=1)
    assert requested == []
    convert("easyr1", source, tmp_path / "on", workers=1, hosts=("127.0.0.1",))
    assert validate(tmp_path / "on") == (1, [])
    write("away.png")
    with pytest.raises(ValueError, match=r"--allow-host elsewhere\.invalid"):
        convert("easyr1", source, tmp_path / "away", workers=1, hosts=("127.0.0.1",))


def test_an_altered_dataset_does_not_validate(tmp_path: Path) -> None:
    convert("easyr1", dataset(tmp_path / "in", 30), tmp_path / "out", workers=1)
    picture = next((tmp_path / "out/media").rglob("*.png"))
    shutil.copy(picture, tmp_path / "kept.png")
    picture.write_bytes(b"not a picture")
    _, problems = validate(tmp_path / "out")
    assert any("its media are not those of the manifest" in what for _, what in problems)
    assert any("not an image" in what for _, what in problems)
    picture.write_bytes(encoded(Image.fromarray(noise(41, 40))))
    assert any("(40, 40), it is (41, 40)" in what or "the record states 40x40" in what
               for _, what in validate(tmp_path / "out")[1])  # fmt: skip
    shutil.copy(tmp_path / "kept.png", picture)
    assert validate(tmp_path / "out")[1] == []
    records = tmp_path / "out/records.jsonl"
    records.write_text(records.read_text() + records.read_text().splitlines()[0] + "\n")
    whats = [what for _, what in validate(tmp_path / "out")[1]]
    assert any("appears on line 1 already" in what for what in whats)
    assert any("its hash differs" in what for what in whats)


def test_a_conversion_that_failed_is_done_again(tmp_path: Path) -> None:
    """Its manifest was once returned as if it were a result."""
    source, pictures = tmp_path / "rows.jsonl", tmp_path / "pictures"
    source.write_text(json.dumps({"problem": "<image>?", "images": ["a.png"], "answer": "1"}))
    for _ in range(2):
        with pytest.raises(ValueError, match=r"none of the 1 rows.*data\.media_root, --media-root"):
            convert("easyr1", source, tmp_path / "out", workers=1)
    pictures.mkdir()
    (pictures / "a.png").write_bytes(encoded(Image.fromarray(noise(30, 30))))
    manifest = convert("easyr1", source, tmp_path / "out", pictures, workers=1)
    assert manifest["counts"]["records"] == 1
    assert manifest["plan"]["media_root"] == "pictures"
    with pytest.raises(ValueError, match="holds a conversion with another media_root; remove it"):
        convert("easyr1", source, tmp_path / "out", workers=1)
    with pytest.raises(ValueError, match="holds a conversion with another hosts; remove it"):
        convert("easyr1", source, tmp_path / "out", pictures, workers=1, hosts=("a.org",))


def test_the_splits_of_a_folder_are_not_merged(tmp_path: Path) -> None:
    row = {"problem": "1+1?", "answer": "2"}
    for name in ("data/train-00000-of-00002", "data/train-00001-of-00002", "data/test-00000-of-1"):
        path = tmp_path / f"hub/{name}.jsonl"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps({**row, "problem": name}))
    with pytest.raises(ValueError, match=r"several splits \(test: data/test-.*--split NAME"):
        convert("easyr1", tmp_path / "hub", tmp_path / "out", workers=1)
    convert("easyr1", tmp_path / "hub", tmp_path / "out", workers=1, split="train")
    assert [s.question[5:16] for s in load_samples(tmp_path / "out/records.jsonl")] == [
        "train-00000", "train-00001",
    ]  # fmt: skip
    with pytest.raises(ValueError, match=r"no split 'val'"):
        convert("easyr1", tmp_path / "hub", tmp_path / "other", workers=1, split="val")


def test_a_folder_per_class_names_its_split_and_is_not_read_past_its_table(tmp_path: Path) -> None:
    for index, name in enumerate(("train/cat/1.png", "train/dog/1.JPG", "val/cat/1.png")):
        (tmp_path / "in" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "in" / name).write_bytes(encoded(Image.fromarray(noise(40, 40, index))))
    with pytest.raises(ValueError, match="name one split with --split"):
        convert("imagefolder", tmp_path / "in", tmp_path / "out", workers=1)
    convert("imagefolder", tmp_path / "in", tmp_path / "out", workers=1, split="train")
    assert [sample.answer for sample in load_samples(tmp_path / "out")] == ["cat", "dog"]
    (tmp_path / "in/train/cat/2.png").write_bytes(encoded(Image.fromarray(noise(40, 40, 9))))
    with pytest.raises(ValueError, match="another inputs"):
        convert("imagefolder", tmp_path / "in", tmp_path / "out", workers=1, split="train")
    (tmp_path / "in/train/metadata.csv").write_text("file_name,question\ncat/1.png,Is it grey?\n")
    with pytest.raises(ValueError, match=r"metadata\.csv describes the pictures"):
        convert("imagefolder", tmp_path / "in", tmp_path / "other", workers=1, split="train")
