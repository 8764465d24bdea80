"""A run that is killed before, in and after a save, against one that is left alone."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from mmr1.config import Config
from mmr1.config.file import dump_yaml
from tests.trainer.same_runs import assert_same

Reached = Mapping[str, Callable[[Path], bool]]
"""Moments to kill a run, and whether the run of a folder has come to them."""

SAVES: Reached = {
    "before the first save": lambda run: bool(text_of(run / "metrics.jsonl")),
    "in a save": lambda run: (run / "checkpoints/step_000002.tmp/model.safetensors").exists(),
    "after a save": lambda run: (run / "checkpoints/step_000004").exists(),
}
"""Moments of a run that saves every second of six steps."""


def text_of(path: Path) -> str:
    return path.read_text() if path.exists() else ""


def start(config: Config) -> subprocess.Popen[bytes]:
    """Start or resume a run in a process of its own."""
    path = Path(config.trainer.output_dir).with_suffix(".yaml")
    path.write_text(dump_yaml(config))
    program = [sys.executable, "-m", "mmr1", config.command, str(path), "--resume"]
    return subprocess.Popen(program, stdout=subprocess.DEVNULL, start_new_session=True)


def kill_and_resume(config: Config, moments: Reached) -> None:
    """Kill a run at each moment, and then let it come to its end."""
    folder = Path(config.trainer.output_dir)
    for when, reached in moments.items():
        process = start(config)
        while process.poll() is None and not reached(folder):
            time.sleep(0.0005)
        process.kill()
        assert process.wait() == -signal.SIGKILL, f"it ended {when}"
    assert start(config).wait() == 0


def assert_kills_change_nothing(config: Callable[[Path], Config], folder: Path) -> None:
    """Compare a whole run with one that is killed around its saves.

    Args:
        config: Makes the configuration of an output folder.
    """
    assert start(config(folder / "whole")).wait() == 0
    kill_and_resume(config(folder / "killed"), SAVES)
    assert_same(folder / "whole", folder / "killed")
