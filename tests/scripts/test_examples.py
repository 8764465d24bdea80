"""The examples run as they stand and stay short."""

from __future__ import annotations

import ast
import os
import subprocess
import sys

import pytest

from mmr1 import parts
from tests.paths import REPOSITORY

EXAMPLES = REPOSITORY / "scripts/examples"
LINES = 60


def run(name: str, *arguments: object) -> str:
    finished = subprocess.run(
        [sys.executable, EXAMPLES / name, *map(str, arguments)],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONPATH": str(EXAMPLES.parents[1])},
    )
    assert finished.returncode == 0, finished.stderr
    return finished.stdout


@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("*.py")), ids=lambda path: path.name)
def test_examples_are_short(path):
    assert len(path.read_text().splitlines()) <= LINES


def test_a_reward():
    first, second, third = run("custom_reward.py").splitlines()
    assert first.startswith("1.5 ")
    assert second.startswith("1.25 ")  # one off of four, and the format
    assert third.startswith("0.0 ")


def test_a_dataset_and_a_loop(tmp_path):
    for _ in range(2):  # what is there is written again
        assert run("custom_dataset.py", tmp_path / "own").startswith("32 records")
    steps = run("training_loop.py", tmp_path / "own/train.jsonl").splitlines()
    rows = [line.split() for line in steps]
    assert [row[:2] for row in rows] == [["step", "1"], ["step", "2"], ["step", "3"]]
    for row in rows:
        values = dict(zip(row[::2], map(float, row[1::2]), strict=True))
        assert 0 < values["reward"] < 1.5
        assert values["grad_norm"] > 0
        assert values["lr"] > 0


def test_a_loop_is_made_of_public_parts():
    tree = ast.parse((EXAMPLES / "training_loop.py").read_text())
    imported = [n.module for n in ast.walk(tree) if isinstance(n, ast.ImportFrom)]
    assert [name for name in imported if name and name.startswith("mmr1")] == ["mmr1"]
    assert all(hasattr(parts, name) for name in parts.__all__)


def test_a_tool_and_an_environment():
    """Those of docs/tools.md and docs/environments.md, in under 20 lines each."""
    from mmr1.config import EnvironmentConfig, OwnEnvironment, ToolsConfig
    from mmr1.environments.build import build_environment
    from mmr1.environments.environment import Action
    from mmr1.types import Sample

    def answers(config: EnvironmentConfig, *turns: str) -> list[tuple[str, float | None]]:
        environment = build_environment(config)
        episode = environment.episode(Sample("1", (), "7"))
        assert episode.begin("").failure is None
        given = [episode.step(Action(turn, (), last=False)) for turn in turns]
        environment.close()
        return [("".join(m.text for m in a.messages), a.reward) for a in given]

    call = '<tool_call>{"name": "lookup", "arguments": {"side": "BC"}}</tool_call>'
    tool = ToolsConfig(tools=(f"{EXAMPLES}/tool.py:lookup",), workers=1)
    assert answers(tool, call) == [("4 cm", None)]
    guess = OwnEnvironment(type=f"{EXAMPLES}/environment.py:Guess", workers=1)
    said = [("larger", 0.0), ("smaller", 0.0), ("", 1.0)]
    assert answers(guess, "5", " 9", "7") == said
    for name in ("tool.py", "environment.py"):
        assert len((EXAMPLES / name).read_text().splitlines()) < 20
