"""``--dry-run`` refuses what no machine could run."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from mmr1.cli import app


def test_a_reward_function_that_nobody_knows(tmp_path: Path) -> None:
    path = tmp_path / "rl.yaml"
    path.write_text(
        f"model: {{path: x}}\ndata: {{train: y.jsonl}}\nrewards: {{mathh: {{}}}}\n"
        f"trainer: {{output_dir: {tmp_path}/run}}\n"
    )
    with pytest.raises(ValueError, match=r"there is no 'mathh'; did you mean 'math'"):
        CliRunner().invoke(app, ["train", str(path), "--dry-run"], catch_exceptions=False)
