"""The directory of a run: one writer at a time, and none once that one is dead."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from mmr1.config import Config
from mmr1.trainer.runs.output import RunDirectory, append_json

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
    directory = RunDirectory(config)
    with pytest.raises(ValueError, match="another process is writing into"):
        RunDirectory(config)
    directory.close()
    RunDirectory(config).close()


def test_text_that_utf8_has_not_is_logged_as_json_escapes_it(tmp_path: Path) -> None:
    rows = [{"error": "a \ud800 b"}, {"error": "naïve 数"}]
    append_json(tmp_path / "rows.jsonl", rows)
    text = (tmp_path / "rows.jsonl").read_text(encoding="utf-8")
    assert [json.loads(line) for line in text.splitlines()] == rows
    assert "naïve 数" in text
