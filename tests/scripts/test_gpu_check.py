"""``scripts/gpu_check.sh``: what of it runs on a CPU, and that it goes on whatever happens."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time

from scripts.gpu.check import CHECKS, Entry, Outcome, outcome_of, show, write
from scripts.gpu.figures import within
from tests.paths import REPOSITORY


def test_on_a_cpu(tmp_path):
    finished = subprocess.run(
        [REPOSITORY / "scripts/gpu_check.sh", "--cpu", "--output", tmp_path],
        env={**os.environ, "PYTHON": sys.executable},
        capture_output=True, text=True, timeout=600, check=False,
    )  # fmt: skip
    assert finished.returncode == 0, finished.stdout + finished.stderr
    checks = json.loads((tmp_path / "gpu_check.json").read_text())["checks"]
    assert [check["name"] for check in checks] == [entry.name for entry in CHECKS]
    states = {check["name"]: check["state"] for check in checks}
    needs_a_gpu = {"estimate against the peak", "training, vLLM rollouts", "ranks and engines"}
    assert {name for name, state in states.items() if state == "skipped"} == needs_a_gpu
    figures = {check["name"]: check["figures"] for check in checks}
    assert figures["checkpoint and resume"]["largest difference"] == 0
    assert 0 < figures["kernels against float32"]["head 128, backward"] < 0.02
    assert figures["training, transformers rollouts"]["steps"] == 3
    assert "packed against padded" in finished.stdout


def test_it_goes_on_after_a_failure(tmp_path, capsys):
    def wrong(device, folder):
        within({"error": 0.5, "s": 1.0}, {"error": 0.1})

    def crashes(device, folder):
        os._exit(3)

    def hangs(device, folder):
        time.sleep(60)

    runs = {"wrong": wrong, "crashes": crashes, "hangs": hangs, "well": lambda *_: {"s": 2.0}}
    outcomes = [
        outcome_of(Entry(n, run, 2 if n == "hangs" else 60), "cpu", tmp_path)
        for n, run in runs.items()
    ]
    ends = [(outcome.state, outcome.note, outcome.figures) for outcome in outcomes]
    assert ends == [
        (
            "failed",
            "OutOfBoundsError: error is 0.5, and may be 0.1 at most",
            {"error": 0.5, "s": 1.0},
        ),
        ("failed", "its process ended with 3", {}),
        ("timed out", "after 2 s", {}),
        ("ok", "", {"s": 2.0}),
    ]
    write(tmp_path / "all.json", outcomes, "cpu")
    assert len(json.loads((tmp_path / "all.json").read_text())["checks"]) == 4
    show([Outcome("one", "ok", 1.0, "", {"share": 0.123456})])
    assert "share: 0.1235" in capsys.readouterr().out
