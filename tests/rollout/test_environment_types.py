"""A type of the section ``environment`` that another package declares."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

SECTION = """
from typing import ClassVar, Literal

from mmr1.section import EnvironmentSection


class EchoConfig(EnvironmentSection):
    builder: ClassVar[str] = "echo_engine:build"
    type: Literal["echo"] = "echo"
    times: int
"""
BUILDER = """
def build(config, engine, family, media):
    if config.environment.times < 0:
        raise ValueError("times: it is negative")
    return ["built", config.environment.times, family, media]
"""
RUN = """
from types import SimpleNamespace

from mmr1.config import Config
from mmr1.rollout.build import with_conversations

for times in (3, -1):
    config = Config(model={"path": "m"}, environment={"type": "echo", "times": times})
    engine = SimpleNamespace(close=lambda: print("closed"))
    try:
        print(with_conversations(config, engine, "family", "media"))
    except ValueError as error:
        print(error)
"""
FILE = """
model: {path: m}
data: {train: rows.jsonl}
environment: {type: echo, times: 3}
rewards: {environment: {}}
"""


def in_a_process(arguments, folder):
    """The output of Python with the packages of a folder, its errors included."""
    path = os.pathsep.join([str(folder), *filter(None, [os.environ.get("PYTHONPATH")])])
    ended = subprocess.run(
        [sys.executable, *arguments],
        capture_output=True,
        text=True,
        env=os.environ | {"PYTHONPATH": path},
        timeout=300,
    )
    return ended.stdout + ended.stderr


@pytest.fixture
def package(tmp_path):
    """A folder with the package, as pip would leave it."""
    info = tmp_path / "packages" / "echo-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: echo\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(
        "[mmr1.environment_types]\necho = echo_section:EchoConfig\n"
    )
    (info.parent / "echo_section.py").write_text(SECTION)
    (info.parent / "echo_engine.py").write_text(BUILDER)
    return info.parent


def test_a_types_builder_makes_the_engine(package):
    built, *failed = in_a_process(["-c", RUN], package).splitlines()
    assert built == "['built', 3, 'family', 'media']"
    assert failed == ["closed", "times: it is negative"]


def test_a_type_is_known_where_its_package_is(package, tmp_path):
    file = tmp_path / "run.yaml"
    file.write_text(FILE)
    command = ["-m", "mmr1", "train", str(file), "--dry-run"]
    assert "times: 3" in in_a_process(command, package)
    assert "there is no 'echo'" in in_a_process(command, tmp_path)
    compared = in_a_process([*command, "algorithm.advantage=gigpo"], package)
    assert "algorithm.advantage.type=gigpo, environment: it compares the turns" in compared
