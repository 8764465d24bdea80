"""Ctrl-C before a command has begun: no traceback, and the exit code that shells expect."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

PRESS = "import os, signal, time\nos.kill(os.getpid(), signal.SIGINT)\ntime.sleep(10)\n"


@pytest.mark.parametrize("imported", ["typer", "pydantic"])  # by mmr1.cli, and by what it imports
def test_ctrl_c_while_the_command_line_is_imported(imported: str, tmp_path: Path) -> None:
    (tmp_path / f"{imported}.py").write_text(PRESS)
    environment = {**os.environ, "PYTHONPATH": f"{tmp_path}:{os.environ.get('PYTHONPATH', '.')}"}
    command = [sys.executable, "-m", "mmr1", "--help"]
    result = subprocess.run(command, env=environment, capture_output=True, text=True)
    # Python itself may pass the signal on after all is done; a shell calls both 130.
    assert result.returncode in (130, -signal.SIGINT)
    assert result.stderr == "interrupted\n"
