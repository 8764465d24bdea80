"""``summary.json``: how far a run is, how its last process ended, and every fault it went on after.

The counts are those of what happened: a step that runs again after a kill counts its faults again.
They outlive the process, whose every fault is written down when it is told.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from types import MappingProxyType
from typing import Any

from mmr1.files import atomic_binary
from mmr1.logs import ROOT, FaultCounter, tell_fault
from mmr1.trainer.runs.stopping import StoppedError

logger = logging.getLogger(__name__)

RUNNING, FINISHED, STOPPED, FAILED = "running", "finished", "stopped", "failed"


class RunSummary:
    """The summary of a run, written from ``begin`` to ``end``; faults count from the start.

    A full disk keeps the summary as it was; the next write has everything.

    Attributes:
        quarantined: The rows of the data that were left out; they are written at the end.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self.quarantined: list[dict[str, str]] = []
        self._step = 0
        self._state = RUNNING
        self._began = False
        self._counter = FaultCounter(self._write)
        logging.getLogger(ROOT).addHandler(self._counter)

    def begin(self, step: int) -> None:
        """``step`` steps are done; the counts of the processes before this one go on."""
        before = _read(self._path)
        if before["step"] and not self._began:
            self._counter.counts.update(before["faults"])
            _tell_end(before)
        self._step, self._began = step, True
        self._write()

    def done(self, step: int) -> None:
        """A step is done."""
        self._step = step
        self._write()

    def end(self, error: BaseException | None, checkpoint: Path | None) -> None:
        """The process ends, with an error or without, and with the run's last checkpoint."""
        if error is None:
            self._state = FINISHED
        elif isinstance(error, StoppedError | KeyboardInterrupt | GeneratorExit):
            self._state = STOPPED
        else:
            self._state = FAILED
        last = None if checkpoint is None else str(checkpoint.relative_to(self._path.parent))
        self._write({"checkpoint": last, "quarantined": self.quarantined})
        logging.getLogger(ROOT).removeHandler(self._counter)

    def _write(self, results: Mapping[str, Any] = MappingProxyType({})) -> None:
        """Not synced to the disk: what a kill leaves is enough, and it is written at every step."""
        if not self._began:
            return
        summary = {
            "state": self._state,
            "step": self._step,
            "faults": dict(sorted(self._counter.counts.items())),
            **results,
        }
        text = json.dumps(summary, indent=1, ensure_ascii=False) + "\n"
        with suppress(OSError), atomic_binary(self._path, sync=False) as (file,):
            file.write(text.encode(errors="backslashreplace"))


def _tell_end(before: dict[str, Any]) -> None:
    """Count how the process before this one ended."""
    kinds = {RUNNING: "killed", STOPPED: "stopped", FAILED: "failed"}
    if kind := kinds.get(before["state"]):
        message = f"the process before this one was at step {before['step']} when it {_ENDS[kind]}"
        tell_fault(logger, f"run/{kind}", message, level=logging.INFO)


_ENDS = {"killed": "was killed", "stopped": "was stopped", "failed": "failed"}


def _read(path: Path) -> dict[str, Any]:
    """The summary on the disk; an empty one where there is none or it cannot be read."""
    try:
        summary: dict[str, Any] = json.loads(path.read_text())
    except (OSError, ValueError):
        return {"state": FINISHED, "step": 0, "faults": {}}
    return summary
