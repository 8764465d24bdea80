"""A resumed run is told which data and plugins are no longer those that it had."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from mmr1.config import Config
from mmr1.config.file import dump_yaml, write_yaml
from mmr1.trainer.runs.existing import accept_changes, check_output_dir, refuse_changed
from mmr1.trainer.runs.fingerprints import changed, fingerprints, write_fingerprints
from mmr1.types import MediaRef, Message, Sample
from tests.jsonl import read_jsonl

SAMPLE = Sample("1", ())


MODEL = ("config.json", "generation_config.json", "tokenizer.json", "chat_template.jinja")


@pytest.fixture
def config(tmp_path: Path) -> Config:
    data = tmp_path / "data"
    (data / "pictures").mkdir(parents=True)
    (data / "a.jsonl").write_text('{"id": "1", "question": "2+2?", "answer": "4"}\n')
    (data / "held_out.jsonl").write_text('{"id": "3", "question": "4+4?", "answer": "8"}\n')
    (data / "folder").mkdir()
    (data / "folder/b.jsonl").write_text('{"id": "2", "question": "3+3?", "answer": "6"}\n')
    (tmp_path / "my.py").write_text("import json\nfrom beside import rule\ndef reward(): ...\n")
    (tmp_path / "beside.py").write_text("import package.deep\nrule = 1\n")
    (tmp_path / "package").mkdir()
    (tmp_path / "package/deep.py").write_text("x = 1\n")
    (tmp_path / "unrelated.py").write_text("x = 1\n")
    (tmp_path / "model").mkdir()
    for name in MODEL:
        (tmp_path / "model" / name).write_text("1")
    (tmp_path / "prompt.jinja").write_text("{{ question }}")
    config = Config(
        model={"path": str(tmp_path / "model")},
        data={
            "train": {str(data / "a.jsonl"): 2.0, f"{data / 'folder'}": 1.0},
            "media_root": str(data / "pictures"),
            "prompt_template": str(tmp_path / "prompt.jinja"),
        },
        rewards={"mine": {"type": f"{tmp_path / 'my.py'}:reward"}},
        trainer={
            "output_dir": str(tmp_path / "run"),
            "validation": {"data": str(data / "held_out.jsonl")},
        },
    )
    started(config)
    return config


def started(config: Config) -> None:
    run = Path(config.trainer.output_dir)
    (run / "checkpoints/step_000001").mkdir(parents=True)
    write_yaml(run / "config.yaml", config)
    write_fingerprints(run, fingerprints(run, config))


CHANGED = (
    "data/a.jsonl",
    "data/folder/b.jsonl",
    "data/held_out.jsonl",
    "my.py",
    "beside.py",
    "package/deep.py",
    "prompt.jinja",
    *(f"model/{name}" for name in MODEL),
)


def test_nothing_has_changed(config, tmp_path):
    assert changed(tmp_path / "run", fingerprints(tmp_path / "run", config)) == []
    for name in CHANGED:  # copied to another machine
        os.utime(tmp_path / name, (1, 1))
    (tmp_path / "unrelated.py").write_text("x = 2\n")
    check_output_dir(config, resume=True)


@pytest.mark.parametrize("name", CHANGED)
@pytest.mark.parametrize("how", ["content", "gone"])
def test_what_has_changed_is_named_and_refused(how, name, config, tmp_path):
    if how == "gone":
        (tmp_path / name).unlink()
    else:
        text = (tmp_path / name).read_text()
        (tmp_path / name).write_text(text.replace("1", "9") + "\n")
    with pytest.raises(ValueError, match=f"{tmp_path / name}.* changed.*--accept-changes"):
        check_output_dir(config, resume=True)
    accept_changes(config)
    check_output_dir(config, resume=True)
    log = (tmp_path / "run/train.log").read_text()
    assert str(tmp_path / name) in log.partition("although")[2]


def test_a_file_that_keeps_its_size_and_its_time_has_changed_too(config, tmp_path):
    rows = tmp_path / "data/a.jsonl"
    before = rows.stat()
    rows.write_text(rows.read_text().replace('"4"', '"5"'))
    os.utime(rows, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert changed(tmp_path / "run", fingerprints(tmp_path / "run", config)) == [str(rows)]


def test_a_run_of_an_earlier_version_goes_on_and_says_so(config, tmp_path, caplog):
    (tmp_path / "run/inputs.json").unlink()
    check_output_dir(config, resume=True)
    assert "it is not known whether the data is that" in caplog.text


@pytest.mark.parametrize("content", ["", "[1]", '{"a": 1}', "nonsense"])
def test_digests_that_cannot_be_read_are_one_line(content, config, tmp_path):
    (tmp_path / "run/inputs.json").write_text(content)
    with pytest.raises(ValueError, match=r"inputs.json is damaged"):
        check_output_dir(config, resume=True)


def test_a_real_run_is_refused_and_goes_on_with_accept_changes(tiny_model, digits, tmp_path, mmr1):
    rows = tmp_path / "rows.jsonl"
    rows.write_text((digits / "sft.jsonl").read_text())
    config = Config(
        model={"path": str(tiny_model), "dtype": "float32"},
        data={"train": str(rows), "media_root": str(digits)},
        trainer={"max_steps": 1, "output_dir": str(tmp_path / "run"), "threads": 1},
    )
    file = tmp_path / "run.yaml"
    file.write_text(dump_yaml(config.for_command("sft")))
    assert mmr1("sft", file)[0] == 0
    assert str(rows) in json.loads((tmp_path / "run/inputs.json").read_text())
    rows.write_text(rows.read_text().replace("digit is", "number is"))
    longer = ("sft", file, "trainer.max_steps=2", "--resume")
    code, _, said = mmr1(*longer)
    assert code == 2
    assert f"{rows} changed" in said
    code, _, said = mmr1("sft", file, "--accept-changes")
    assert code == 2
    code, _, said = mmr1(*longer, "--accept-changes")
    assert code == 0, said
    assert [line["step"] for line in read_jsonl(tmp_path / "run/metrics.jsonl")] == [1, 2]
    assert mmr1(*longer)[0] == 0


def test_media_are_compared_once_the_rows_are_read(config, tmp_path):
    run, picture = tmp_path / "run", tmp_path / "data/pictures/a.png"
    picture.write_bytes(b"a picture")
    rows = {"rows": [replace(SAMPLE, messages=(Message("user", (MediaRef("image", picture),)),))]}
    write_fingerprints(run, fingerprints(run, config, rows))
    picture.write_bytes(b"another")
    assert changed(run, fingerprints(run, config)) == []
    with pytest.raises(ValueError, match=r"media of rows changed.*--accept-changes"):
        refuse_changed(config, fingerprints(run, config, rows))
    accept_changes(config)
    refuse_changed(config, fingerprints(run, config, rows))


def test_another_version_of_mmr1_is_named(config, monkeypatch):
    monkeypatch.setattr("mmr1.trainer.runs.fingerprints.__version__", "another")
    with pytest.raises(ValueError, match=r"mmr1 changed"):
        check_output_dir(config, resume=True)


@pytest.mark.parametrize("place", [0, 5 << 20, -1])
def test_large_weights_are_known_by_their_blocks(place, config, tmp_path):
    run, file = tmp_path / "run", tmp_path / "model/model.safetensors"
    weights = np.random.default_rng(0).integers(256, size=9 << 20, dtype=np.uint8)
    file.write_bytes(weights.tobytes())
    write_fingerprints(run, fingerprints(run, config))
    changed_at = slice(place, None) if place < 0 else slice(place, place + (1 << 18))
    weights[changed_at] ^= 1
    file.write_bytes(weights.tobytes())
    assert changed(run, fingerprints(run, config)) == [str(file)]


def test_a_file_that_comes_is_a_change(config, tmp_path):
    (tmp_path / "data/folder/c.jsonl").write_text('{"id": "9", "question": "?", "answer": "1"}\n')
    with pytest.raises(ValueError, match=r"c.jsonl changed"):
        check_output_dir(config, resume=True)
