"""``scripts/gpu_check.sh``: its short form on a CPU, and that no failure ends it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from scripts.gpu import runs
from scripts.gpu.check import (
    CHECKS,
    FIRST,
    FIRST_S,
    Entry,
    Outcome,
    chosen,
    compare,
    main,
    outcome_of,
    read,
    show,
    write,
)
from scripts.gpu.figures import Setting, SkippedError, within
from tests.paths import REPOSITORY


def check(folder: Path, *options: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [REPOSITORY / "scripts/gpu_check.sh", "--cpu", *options, "--output", folder],
        env={**os.environ, "PYTHON": sys.executable},
        capture_output=True, text=True, check=False,
    )  # fmt: skip


@pytest.mark.slow
def test_the_short_form_on_a_cpu_and_what_it_keeps(tmp_path):
    finished = check(tmp_path, "--short", "--only", "negative", "kernels", "checkpointed")
    assert finished.returncode == 0, finished.stdout + finished.stderr
    written = json.loads((tmp_path / "gpu_check.json").read_text())
    assert written["versions"]["torch"]
    figures = {row["name"]: row["figures"] for row in written["checks"]}
    assert list(figures) == ["kernels", "checkpointed step", "negative controls"]
    assert 0 < figures["kernels"]["bfloat16, head 128, backward"] < 0.02
    assert figures["kernels"]["float32, head 128, backward"] < 1e-5
    faults = figures["negative controls"]
    for fault in ("swapped picture", "stale weights", "a layer that was not sent"):
        assert faults[fault] > 10 * faults["right"], "a fault that is not seen"
    assert Path(figures["checkpointed step"]["profile"]).exists()
    other = tmp_path / "other.json"
    other.write_text((tmp_path / "gpu_check.json").read_text())
    again = check(tmp_path, "--short", "--only", "kernels", "--resume", "--compare", str(other))
    assert "kernels: ok before" in again.stdout
    assert "1.00" in again.stdout
    kept = json.loads((tmp_path / "gpu_check.json").read_text())["checks"]
    assert len(kept) == 3, "an interrupted check keeps what it has"


@pytest.mark.slow
def test_the_whole_list_on_a_cpu(tmp_path):
    finished = check(tmp_path)
    assert finished.returncode == 0, finished.stdout + finished.stderr
    checks = json.loads((tmp_path / "gpu_check.json").read_text())["checks"]
    assert [check["name"] for check in checks] == [entry.name for entry in CHECKS]
    skipped = {check["name"] for check in checks if check["state"] == "skipped"}
    never = {
        "memory handed over",
        "estimate against the peak",
        "fp8 rollouts",
        "against TRL",
        "engine of two GPUs",
    }
    assert skipped <= never


@pytest.mark.parametrize("run", [runs.fp8, runs.wide])
def test_what_a_cpu_cannot_run_is_a_configuration(run, tmp_path):
    with pytest.raises(SkippedError):
        run(Setting("cpu", tmp_path))


def test_first_checks_end_when_their_time_is_spent(tmp_path, monkeypatch, capsys):
    ran: list[float] = []

    def record(entry: Entry, setting: Setting) -> Outcome:
        ran.append(entry.timeout_s)
        return Outcome(entry.name, "ok", 0.0)

    # main() sets both; left behind, they hide the pretended GPUs of later tests.
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    monkeypatch.setenv("PYTORCH_NVML_BASED_CUDA_CHECK", "1")
    monkeypatch.setattr("sys.argv", ["check", "--cpu", "--first", "--output", str(tmp_path)])
    monkeypatch.setattr("scripts.gpu.check.outcome_of", record)
    assert main() == 0
    assert len(ran) == len(FIRST)
    for spent in (FIRST_S - 20, FIRST_S):
        ran.clear()
        clock = iter([0.0, *[spent] * len(FIRST)])
        monkeypatch.setattr("scripts.gpu.check.time.monotonic", lambda: next(clock))  # noqa: B023
        main()
        assert ran == ([20.0] * len(FIRST) if spent < FIRST_S else [])


def test_checks_are_chosen_by_parts_of_their_names():
    assert [entry.name for entry in chosen(["coloc", "fp8"], short=False)] == [
        "colocated",
        "fp8 rollouts",
    ]
    assert {entry.short for entry in chosen([], short=True)} == {True}
    assert all(entry.timeout_s < 480 for entry in CHECKS), "each is under 8 minutes"


def test_a_busy_machine_ends_no_check_without_a_gpu(tmp_path):
    outcome = outcome_of(
        Entry("slow", lambda _: time.sleep(0.5) or {}, 0.01), Setting("cpu", tmp_path)
    )
    assert outcome.state == "ok"


def test_it_goes_on_after_a_failure(tmp_path, capsys):
    def wrong(setting):
        within({"error": 0.5, "s": 1.0}, {"error": 0.1})

    def crashes(setting):
        os._exit(3)

    def hangs(setting):
        time.sleep(60)

    runs = {"wrong": wrong, "crashes": crashes, "hangs": hangs, "well": lambda _: {"s": 2.0}}
    outcomes = [
        outcome_of(
            Entry(n, run, 2 if n == "hangs" else 60),
            Setting("cuda" if n == "hangs" else "cpu", tmp_path),
        )
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
    there = read(tmp_path / "all.json")
    assert there["well"] == outcomes[3]
    assert read(tmp_path / "none.json") == {}
    there["well"].figures["s"] = 4.0
    compare(outcomes, there)
    assert "0.50" in capsys.readouterr().out
    show([Outcome("one", "ok", 1.0, "", {"share": 0.123456})])
    assert "share: 0.1235" in capsys.readouterr().out
