"""How many supervised steps the control of an RL run takes."""

from __future__ import annotations

import json
from pathlib import Path

from mmr1.registry import import_file
from tests.paths import REPOSITORY

SCRIPT = REPOSITORY / "scripts/recipes/control_steps.py"


def run(folder: Path, seconds: list[float]) -> Path:
    folder.mkdir()
    rows = [{"step": i, "time/step": s} for i, s in enumerate(seconds, 1)]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder


def test_the_control_takes_as_long_as_rl_and_a_stall_does_not_count(tmp_path):
    sft = run(tmp_path / "sft", [9.0, 0.5, 0.5, 0.5])
    rl = run(tmp_path / "rl", [2.0, 2.0, 60.0, 2.0, 2.0])
    assert import_file(SCRIPT).control_steps(sft, rl) == 20  # 5 steps of 2 s, in steps of 0.5 s
