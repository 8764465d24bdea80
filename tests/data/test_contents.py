"""What a run and a conversion say first: how many records have media, what was not read."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from datasets_prep.data_cli import app
from mmr1.config import Config, DataConfig
from mmr1.data import sources
from mmr1.data.sources import load_held_out, load_mixture
from tests.data.form_rows import write_media

ROWS: list[dict[str, Any]] = [
    {"q": "<image>Who?", "gt": "Ann", "pic": "a.png", "level": 3, "mask": "b.png"},
    {"q": "<image>Who?", "gt": "Bob", "pic": "b.png", "subject": "art"},
    {"q": "<video>What?", "gt": "it", "pic": None, "film": "clip.mp4"},
    {"q": "1 + 1?", "gt": "2", "pic": None, "film": None},
]
SAID = (
    "4 record(s), 1 with videos, 2 with images, 1 text only; columns that only rewards "
    "may name (no format reads them): level, mask, subject"
)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    write_media(tmp_path)
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    return path


@pytest.mark.parametrize("large", [False, True])
def test_a_run_says_what_it_read(
    path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], large: bool
) -> None:
    if large:
        monkeypatch.setattr(sources, "FROM_BYTES", 0)
    keys = {"prompt_key": "q", "answer_key": "gt", "image_key": "pic", "video_key": "film"}
    for _ in range(2):  # the second time from the index
        load_mixture(DataConfig(train=str(path), format=keys))
        assert capsys.readouterr().err == f"{path}: {SAID}\n"
    held_out = {"validation": {"data": str(path)}}
    load_held_out(Config(model={"path": "x"}, data={"format": keys}, trainer=held_out))
    assert capsys.readouterr().err == f"{path}: {SAID}\n"


def test_a_conversion_says_what_it_read(path: Path) -> None:
    fields = "question=q,answer=gt,image=pic,video=film"
    arguments = ["--input", str(path), "--output", str(path.parent / "out"), "--map", fields]
    for row in ROWS:
        row.setdefault("film", None)
    path.write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    result = CliRunner().invoke(app, ["convert", "rows", *arguments, "--workers", "1"])
    assert result.exit_code == 0
    said = SAID.replace("4 record(s)", "rows: of the first 4 row(s)")
    assert said in result.stderr
    assert "columns that only rewards may name (no format reads them): level, mask" in result.stdout
    manifest = json.loads((path.parent / "out/manifest.json").read_text())
    assert manifest["records_by_media"] == {"with images": 2, "with videos": 1, "text only": 1}
    assert manifest["columns_not_read"] == ["level", "mask", "subject"]
