"""The documented command of lmms-eval, on a task made here, against a tiny model behind vLLM."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from PIL import Image

from tests.paths import REPOSITORY
from tests.vllm_server import vllm_server

COLOURS = ("red", "green", "blue", "yellow", "black", "white")
TASK = """
task: colours
dataset_path: json
dataset_kwargs: {data_files: {test: ROWS}}
test_split: test
output_type: generate_until
doc_to_visual: !function utils.pictures
doc_to_text: !function utils.question
doc_to_target: answer
process_results: !function utils.results
generation_kwargs: {max_new_tokens: 8, temperature: 0}
metric_list:
  - {metric: letters, aggregation: mean, higher_is_better: true}
"""
UTILS = """
from PIL import Image

def pictures(row):
    return [Image.open(row["picture"]).convert("RGB")]

def question(row, lmms_eval_specific_kwargs=None):
    return row["question"]

def results(row, replies):
    return {"letters": len(replies[0])}
"""


def documented() -> list[str]:
    page = (REPOSITORY / "docs/evaluation.md").read_text()
    found = re.search(r"python (-m lmms_eval (?:.*\\\n)*.*)\n", page)
    assert found is not None
    return shlex.split(found[1].replace("\\\n", ""))


@pytest.mark.slow
@pytest.mark.vllm
def test_lmms_eval_asks_a_served_checkpoint(tiny_model, tmp_path: Path):
    pytest.importorskip("vllm", reason="vLLM is not installed")
    pytest.importorskip("lmms_eval", reason="lmms_eval is not installed")
    task = tmp_path / "task"
    task.mkdir()
    rows = []
    for colour in COLOURS:
        path = task / f"{colour}.png"
        Image.new("RGB", (84, 56), colour).save(path)
        rows.append({"picture": str(path), "question": "Which colour?", "answer": colour})
    (task / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (task / "colours.yaml").write_text(TASK.replace("ROWS", str(task / "rows.jsonl")))
    (task / "utils.py").write_text(UTILS)
    with vllm_server(tiny_model, tmp_path / "log", "--served-model-name", "mmr1") as url:
        words = documented()
        words[words.index("--tasks") + 1] = "colours"
        words[words.index("--output_path") + 1] = str(tmp_path / "out")
        words = [word.replace("http://localhost:8000", url) for word in words]
        own = {**os.environ, "OPENAI_API_KEY": "none", "HF_HOME": str(tmp_path / "cache")}
        command = [sys.executable, *words, "--include_path", str(task), "--log_samples"]
        subprocess.run(command, env=own, cwd=tmp_path, check=True)
    (result,) = (tmp_path / "out").rglob("*_results.json")
    (samples,) = (tmp_path / "out").rglob("*_samples_colours.jsonl")
    said = [json.loads(line) for line in samples.read_text().splitlines()]
    lengths = [len(one["filtered_resps"]) for one in said]
    assert len(lengths) == len(COLOURS)
    assert min(lengths) > 0
    scored = json.loads(result.read_text())["results"]["colours"]
    assert scored["letters,none"] == pytest.approx(sum(lengths) / len(lengths))
