"""summary.json: every fault that a run continued after is counted, across its processes."""

from __future__ import annotations

import json
import logging
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from mmr1.logs import report_fault
from mmr1.trainer.runs.step import StoppedError
from tests.trainer.runs.summaries import directory_in

logger = logging.getLogger("mmr1.tests")


def summary(folder: Path) -> dict[str, Any]:
    """Without what it says of the checkpoint and of the data."""
    everything = json.loads((folder / "summary.json").read_text())
    return {name: everything[name] for name in ("state", "step", "faults")}


KILLED = """
import logging, os, signal, sys
from pathlib import Path
from tests.trainer.runs.summaries import directory_in
from mmr1.logs import report_fault

with directory_in(Path(sys.argv[1])) as directory:
    directory.begin()
    directory.log({"step": 1})
    directory.log({"step": 2})
    report_fault(logging.getLogger("mmr1.x"), "engine/died", "no one knows why", level=logging.INFO)
    os.kill(os.getpid(), signal.SIGKILL)
"""


def test_counts_outlive_a_process_that_is_killed(tmp_path):
    killed = subprocess.run([sys.executable, "-c", KILLED, str(tmp_path)])
    assert killed.returncode == -signal.SIGKILL
    assert summary(tmp_path) == {"state": "running", "step": 2, "faults": {"engine/died": 1}}
    with directory_in(tmp_path) as directory:
        directory.begin()
        report_fault(logger, "engine/died", "again")
        counts = {"engine/died": 2, "run/killed": 1}
        assert summary(tmp_path) == {"state": "running", "step": 0, "faults": counts}
    assert summary(tmp_path) == {"state": "finished", "step": 0, "faults": counts}


def test_how_each_process_ended_is_counted_by_the_next(tmp_path):
    ends = [StoppedError("SIGTERM", 15), ValueError("no"), KeyboardInterrupt(), None, None]
    states = []
    for error in ends:
        directory = directory_in(tmp_path)
        directory.begin()
        directory.log({"step": 1})
        directory.__exit__(type(error), error, None)
        states.append(summary(tmp_path)["state"])
    assert states == ["stopped", "failed", "stopped", "finished", "finished"]
    assert summary(tmp_path)["faults"] == {"run/failed": 1, "run/stopped": 2}


def test_a_refused_run_leaves_no_summary_and_one_without_a_step_no_counts(tmp_path):
    with pytest.raises(ValueError, match="refused"), directory_in(tmp_path):
        raise ValueError("refused")
    assert not (tmp_path / "summary.json").exists()
    directory = directory_in(tmp_path)
    directory.begin()
    directory.__exit__(RuntimeError, RuntimeError("before step 1"), None)
    with directory_in(tmp_path) as directory:
        directory.begin()
    assert summary(tmp_path)["faults"] == {}


def test_what_is_counted_stands_in_the_log_and_counts_from_before_the_first_step(tmp_path):
    with directory_in(tmp_path) as directory:
        report_fault(logger, "engine/hung", "the engine does not answer", 2)
        directory.begin()
    report_fault(logger, "engine/hung", "of no run")
    assert summary(tmp_path)["faults"] == {"engine/hung": 2}
    assert "the engine does not answer" in (tmp_path / "train.log").read_text()
