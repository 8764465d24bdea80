"""What the README shows is what the code does."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
from pathlib import Path

import pytest

from mmr1.config.file import load_config
from mmr1.data.record import decode
from mmr1.types import MediaRef
from tests.paths import REPOSITORY

README = (REPOSITORY / "README.md").read_text()


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", README, re.S)


def commands() -> list[list[str]]:
    lines = [line for b in blocks("bash") for line in b.replace("\\\n", " ").splitlines()]
    return [shlex.split(line, comments=True) for line in lines if line.strip()]


@pytest.mark.parametrize(
    "command",
    [c for c in commands() if c[:2] in (["mmr1", "train"], ["mmr1", "eval"])],
    ids=" ".join,
)
def test_configurations_resolve(command, tmp_path):
    path = Path(command[2])
    if not path.is_relative_to("scripts"):  # a run's own configuration: any will do
        path = tmp_path / "run.yaml"
        path.write_text("model: {path: some-model}\n")
    load_config(path, [word for word in command[3:] if not word.startswith("--")], command[1])


def test_every_script_that_is_named_is_there():
    for command in commands():
        if command[0].startswith("./"):
            assert (REPOSITORY / command[0]).is_file(), command


def test_the_record_is_a_record(tmp_path):
    (row,) = (json.loads(block) for block in blocks("json"))
    (tmp_path / "images").mkdir()
    (tmp_path / "images/1.png").touch()
    sample = decode(row, tmp_path)
    assert isinstance(sample.messages[0].parts[0], MediaRef)
    assert sample.question == "How many cubes are there?"


def test_the_reward_is_a_reward(tmp_path, mmr1):
    source = blocks("python")[0]
    (tmp_path / "my_reward.py").write_text(source)
    texts = ("<answer>4</answer>", "<answer>14</answer>", "4", "<answer> 4 </answer>")
    lines = [json.dumps({"completion": text, "answer": "4"}) for text in texts]
    (tmp_path / "x.jsonl").write_text("\n".join(lines) + "\n")
    spec, rows = f"{tmp_path}/my_reward.py:reward", tmp_path / "y.jsonl"
    given = ("--input", tmp_path / "x.jsonl", "--output", rows)
    code, _, message = mmr1("reward", "score", "--reward", spec, *given)
    assert code == 0, message
    assert [json.loads(line)["reward"] for line in rows.open()] == [1.0, 0.0, 0.0, 1.0]


def test_the_map_names_what_exists():
    page = (REPOSITORY / "docs/architecture.md").read_text().partition("## Map of the code")[2]
    page = page.partition("\n## ")[0]
    paths = re.findall(r"^\| `([^`]+)` \|", page, re.M)
    assert len(paths) > 20
    for path in paths:
        assert (REPOSITORY / path).exists(), path


def test_the_scripts_are_sound_shell():
    for script in (REPOSITORY / "scripts").rglob("*.sh"):
        subprocess.run(["bash", "-n", str(script)], check=True)
