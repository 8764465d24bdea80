"""The tutorial's files are written and its commands are run, in an empty folder."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

from tests.jsonl import read_jsonl
from tests.paths import REPOSITORY

TUTORIAL = (REPOSITORY / "docs" / "rewards.md").read_text()
BLOCK = re.compile(r"<!-- (file: (\S+)|run) -->\n```\w+\n(.*?)```", re.DOTALL)


def rows(path: Path) -> list[dict]:
    return read_jsonl(path)


def test_the_tutorial_works_as_written(tmp_path: Path) -> None:
    commands = []
    for _, name, body in BLOCK.findall(TUTORIAL):
        if name:
            (tmp_path / name).write_text(body)
            continue
        for line in body.strip().splitlines():
            program, *arguments = shlex.split(line)
            assert program == "mmr1"
            done = subprocess.run(
                [sys.executable, "-m", "mmr1", *arguments],
                cwd=tmp_path,
                env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
                capture_output=True,
                text=True,
                check=False,
                timeout=120,
            )
            assert done.returncode == 0, (line, done.stderr)
            commands.append(line)
    assert len(commands) == 6
    with_bonus = [row["components"] for row in rows(tmp_path / "with_bonus.jsonl")]
    assert [parts["math"] for parts in with_bonus] == [1.0, 1.0, 0.0, 0.0]
    assert {parts["length"] for parts in with_bonus} == {0.0}  # the rows have no tokens
    brevity = [row["reward"] for row in rows(tmp_path / "scored.jsonl")]
    assert brevity[0] == 1.0
    assert 0 <= brevity[1] < 1
    assert brevity[2:] == [0.0, 0.0]
    assert [row["status"] for row in rows(tmp_path / "by_math.jsonl")] == ["ok"] * 3 + ["no_answer"]
    totals = [row["reward"] for row in rows(tmp_path / "composite.jsonl")]
    assert totals[0] == 1.7
    assert totals[2:] == [0.5, 0.0]


def test_the_ten_lines_are_ten() -> None:
    (body,) = [body for _, name, body in BLOCK.findall(TUTORIAL) if name == "brevity.py"]
    assert len(body.splitlines()) <= 10
