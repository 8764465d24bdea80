"""The directory of a run: one writer at a time, and none once that one is dead."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from mmr1.config import Config
from mmr1.trainer.runs.checkpoint import write_checkpoint
from mmr1.trainer.runs.output import RunDirectory, append_json
from tests.jsonl import read_jsonl

HOLD = """
import sys, time
from mmr1.config import Config
from mmr1.trainer.runs.output import RunDirectory

model, trainer = {"path": "x"}, {"output_dir": sys.argv[1]}
directory = RunDirectory(Config.model_validate({"model": model, "trainer": trainer}))
print("held", flush=True)
time.sleep(60)
"""


def test_the_lock_goes_with_the_process_that_held_it(tmp_path: Path) -> None:
    config = Config(model={"path": "x"}, trainer={"output_dir": str(tmp_path)})
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(tmp_path)], stdout=subprocess.PIPE, text=True
    )
    try:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        with pytest.raises(ValueError, match="another process is writing into"):
            RunDirectory(config)
    finally:
        holder.kill()  # no time to clean up
        holder.wait()
    with RunDirectory(config), pytest.raises(ValueError, match="another process is writing into"):
        RunDirectory(config)
    with RunDirectory(config):
        pass


def test_text_that_utf8_has_not_is_logged_as_json_escapes_it(tmp_path: Path) -> None:
    rows = [{"error": "a \ud800 b"}, {"error": "naïve 数"}]
    append_json(tmp_path / "rows.jsonl", rows)
    text = (tmp_path / "rows.jsonl").read_text(encoding="utf-8")
    assert [json.loads(line) for line in text.splitlines()] == rows
    assert "naïve 数" in text


def test_what_a_resumed_run_repeats_is_set_aside(tmp_path: Path) -> None:
    config = Config(model={"path": "x"}, trainer={"output_dir": str(tmp_path)})
    with RunDirectory(config) as directory:
        write_checkpoint(tmp_path / "checkpoints", 2, lambda folder: {})
        for attempt in (1, 2):
            for step in range(1 if attempt == 1 else 3, 5):
                directory.log({"step": step, "attempt": attempt})
                append_json(tmp_path / f"rollouts/step_{step:06d}.jsonl", [{"attempt": attempt}])
            directory.last_checkpoint(warn=pytest.fail)
            directory.begin()
            aside = tmp_path / f"set_aside/{attempt}"
            rows = [{"step": step, "attempt": attempt} for step in (3, 4)]
            assert read_jsonl(aside / "metrics.jsonl") == rows
            names = [path.name for path in sorted((aside / "rollouts").iterdir())]
            assert names == ["step_000003.jsonl", "step_000004.jsonl"]
            assert [row["step"] for row in read_jsonl(directory.metrics_file)] == [1, 2]
        directory.begin()  # nothing to repeat: no further folder
        assert len(list((tmp_path / "set_aside").iterdir())) == 2


def test_without_an_undamaged_checkpoint_nothing_is_rewound(tmp_path: Path) -> None:
    config = Config(model={"path": "x"}, trainer={"output_dir": str(tmp_path)})
    with RunDirectory(config) as directory:
        (write_checkpoint(tmp_path / "checkpoints", 1, lambda folder: {}) / "extra").touch()
        directory.log({"step": 1})
        with pytest.raises(ValueError, match=r"no undamaged checkpoint .*step_000001 .*extra"):
            directory.last_checkpoint(warn=pytest.fail)
        assert read_jsonl(directory.metrics_file) == [{"step": 1}]


def test_a_place_that_cannot_be_written_to_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for place in ("file", "file/run"):
        output_dir = str(tmp_path / place)
        with pytest.raises(ValueError, match=f"output_dir '{output_dir}' cannot be written"):
            RunDirectory(Config(model={"path": "x"}, trainer={"output_dir": output_dir}))


def test_a_run_whose_folder_is_removed_ends(tmp_path: Path) -> None:
    run = tmp_path / "run"
    with RunDirectory(Config(model={"path": "x"}, trainer={"output_dir": str(run)})) as directory:
        directory.begin()
        directory.log({"step": 1})
        directory.log_rollouts(1, [], {})
        shutil.rmtree(run / "rollouts")
        directory.log_rollouts(2, [], {})
        assert [path.name for path in (run / "rollouts").iterdir()] == ["step_000002.jsonl"]
        shutil.rmtree(run)
        with pytest.raises(FileNotFoundError, match="run was removed"):
            directory.log({"step": 2})
        assert not run.exists()
