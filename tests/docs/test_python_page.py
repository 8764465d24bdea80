"""The blocks of ``docs/python.md`` run as they stand, one after another."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.paths import REPOSITORY

PAGE = REPOSITORY / "docs/python.md"
RUN = """\
data: {train_batch_size: 2}
rollout: {engine: hf, n: 4, max_prompt_length: 128, max_response_length: 8}
trainer: {max_steps: 2, output_dir: runs/first}
eval: {limit: 2}
"""


def test_the_page_works_as_written(
    tiny_model: Path,
    digits: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    shutil.copytree(tiny_model, tmp_path / "model")
    shutil.copytree(digits / "images", tmp_path / "images")
    for name, source in {"records": "rl", "eval": "eval", "sft": "sft"}.items():
        shutil.copy(digits / f"{source}.jsonl", tmp_path / f"{name}.jsonl")
    (tmp_path / "run.yaml").write_text(RUN)
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    for block in re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.S):
        exec(compile(block, str(PAGE), "exec"), names)
    out = capsys.readouterr().out
    for line in (
        r"1 \d\.\d+",
        r"2 \d\.\d+",
        r"0\.\d+ \(0\.\d+, 0\.\d+\)",
        "runs/first/checkpoints/.*2",
    ):
        assert re.search(f"^{line}$", out, re.M), line
    assert (tmp_path / "out/config.json").is_file()
    assert names["result"].prompts == 4
    for run in ("first", "colours", "tuned"):
        lines = (tmp_path / "runs" / run / "metrics.jsonl").read_text().splitlines()
        assert [json.loads(line)["step"] for line in lines] == [1, 2]
