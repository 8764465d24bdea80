"""What people add, of every kind: from a file, and from an entry point of an installed package."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from mmr1.config import (
    AlgorithmConfig,
    Config,
    OwnEnvironment,
    ToolsConfig,
)
from mmr1.data.forms import read_row
from mmr1.data.forms.form import Place
from mmr1.engines import engine
from mmr1.environments.build import build_environment
from mmr1.environments.environment import Action
from mmr1.environments.schemas import described
from mmr1.registry import Registry
from mmr1.rewards.plugins.user_function import describe
from mmr1.rollout.engines import check_engine
from mmr1.trainer.algorithm import build_algorithm
from mmr1.trainer.runs.tracking import Trackers, check_trackers
from mmr1.trainer.sampling import step_rewards
from mmr1.types import Message, Sample, TextPart
from mmr1.vision.families.loading import architecture_named
from tests.jsonl import read_jsonl


@dataclass(frozen=True)
class Kind:
    """Something that can be added.

    Attributes:
        group: Of its entry points.
        source: A file that defines ``mine``.
        use: Uses it as a run does, by its name, in a folder.
    """

    group: str
    source: str
    use: Callable[[str, Path], None]


TOKENS: Any = SimpleNamespace(mask=torch.ones(2, 3))


def _use_reward(name: str, folder: Path) -> None:
    assert describe(name, "{}", None, None)["media"] is False


def _use_advantage(name: str, folder: Path) -> None:
    config = AlgorithmConfig(advantage={"type": name})
    assert build_algorithm(config).advantage.of_tokens(TOKENS).eq(8).all()


def _use_loss(name: str, folder: Path) -> None:
    config = AlgorithmConfig(loss={"type": name})
    assert build_algorithm(config).policy_loss.of_tokens(TOKENS).eq(8).all()


def _use_engine(name: str, folder: Path) -> None:
    config = Config(model={"path": "a"}, rollout={"engine": name})
    check_engine(config)
    assert engine.build(config.rollout.engine, None) == "built"


def tracking(name: str, **keys: str) -> dict[str, dict[str, object]]:
    return {"tracking": {"report_to": [name], **keys}}


def _use_tracker(name: str, folder: Path) -> None:
    config = Config(model={"path": "a"}, trainer=tracking(name, run_name="first"))
    check_trackers(config.trainer.trackers)
    with Trackers(config, folder) as trackers:
        trackers.log({"step": 3, "loss": 0.5})
    assert read_jsonl(folder / "first.jsonl") == [{"step": 3, "loss": 0.5}]


def _use_family(name: str, folder: Path) -> None:
    assert architecture_named(name).model_type == "mine_vl"


def _use_form(name: str, folder: Path) -> None:
    sample = read_row({"frage": "2+2?", "antwort": "4"}, Place(folder, "set", 0), name)
    assert (sample.question, sample.answer) == ("2+2?", "4")


def _use_tool(name: str, folder: Path) -> None:
    (tool,) = described(ToolsConfig(tools=(name,)))
    assert tool.name == "mine"


def _use_environment(name: str, folder: Path) -> None:
    sample = Sample("1", (Message("user", (TextPart("Guess."),)),))
    with closing(build_environment(OwnEnvironment(type=name, workers=1))) as environment:
        episode = environment.episode(sample)
        assert episode.begin("Guess.").failure is None
        assert episode.step(Action("4", (), False)).reward == 1.0
        episode.end()


def _use_step_rewards(name: str, folder: Path) -> None:
    assert step_rewards._FUNCTIONS.load(name)("ab", None) == [(2, 1.0)]


TRACKER = """
import json

class Tracker:
    def __init__(self, run):
        self.file = (run.folder / f"{run.name}.jsonl").open("w")
    def log(self, step, numbers):
        print(json.dumps({"step": step, **numbers}), file=self.file)
    def log_rollouts(self, step, rows):
        pass
    def close(self):
        self.file.close()

mine = Tracker
"""
FORM = """
from mmr1.data.forms.form import Form
from mmr1.types import Message, Sample, TextPart

def read(row, place):
    return Sample(str(place.index), (Message("user", (TextPart(row["frage"]),)),), row["antwort"])

mine = Form("mine", "us", ("frage", "antwort"), read)
"""
ADVANTAGE = """
from mmr1.algorithms import Advantage

def mine():
    return Advantage(lambda x: x.mask + 7)
"""
LOSS = """
from mmr1.algorithms import Loss

def mine():
    return Loss(lambda x: x.mask + 7)
"""
ENGINE = """
from mmr1.engines import engine
@engine("mine")
def mine(setting):
    'Nothing but a word.'
    return "built"
"""
FAMILY = """
from types import SimpleNamespace
mine = SimpleNamespace(model_type="mine_vl")
"""
TOOL = '''
def mine(number: int) -> str:
    """Say a number.

    Args:
        number: The number.
    """
    return str(number)
'''
ENVIRONMENT = """
class mine:
    def reset(self, sample):
        pass
    def step(self, action):
        return "", True, float(action == "4")
"""

KINDS = {
    "reward": Kind("mmr1.rewards", "def mine(completion): return 1.0", _use_reward),
    "advantage": Kind("mmr1.advantages", ADVANTAGE, _use_advantage),
    "loss": Kind("mmr1.losses", LOSS, _use_loss),
    "engine": Kind("mmr1.engines", ENGINE, _use_engine),
    "tracker": Kind("mmr1.trackers", TRACKER, _use_tracker),
    "family": Kind("mmr1.families", FAMILY, _use_family),
    "row form": Kind("mmr1.forms", FORM, _use_form),
    "tool": Kind("mmr1.tools", TOOL, _use_tool),
    "environment": Kind("mmr1.environments", ENVIRONMENT, _use_environment),
    "step rewards": Kind(
        "mmr1.step_rewards",
        "def mine(text, sample): return [(len(text), 1.0)]",
        _use_step_rewards,
    ),
}


@pytest.mark.parametrize("kind", KINDS)
def test_it_can_be_in_a_file(kind, tmp_path):
    file = tmp_path / f"{kind.replace(' ', '_')}.py"
    file.write_text(KINDS[kind].source)
    KINDS[kind].use(f"{file}:mine", tmp_path)


@pytest.mark.parametrize("kind", KINDS)
def test_it_can_be_an_entry_point_of_a_package(kind, tmp_path, monkeypatch):
    module = f"added_{kind.replace(' ', '_')}"
    (tmp_path / f"{module}.py").write_text(KINDS[kind].source)
    package = tmp_path / f"{module}-1.0.dist-info"
    package.mkdir()
    (package / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {module}\nVersion: 1.0\n")
    (package / "entry_points.txt").write_text(f"[{KINDS[kind].group}]\nadded = {module}:mine\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    architecture_named.cache_clear()
    KINDS[kind].use("added", tmp_path)


def test_a_file_is_imported_once_and_again_when_it_changed(tmp_path):
    file = tmp_path / "mine.py"
    file.write_text("calls = []\ndef a(): return calls\ndef b(): return calls\n")
    registry = Registry("thing", {})
    assert registry.load(f"{file}:a")() is registry.load(f"{file}:b")()
    file.write_text("def a(): return 'another text, of another length'\n")
    os.utime(file, ns=(1, 1))
    assert registry.load(f"{file}:a")() == "another text, of another length"


@pytest.mark.parametrize(
    ("tracker", "message"),
    [
        ("wandbb", r"unknown tracker 'wandbb' \(did you mean 'wandb'\?\); known: "),
        ("no_such.py:start", "no_such.py: no such Python file"),
    ],
)
def test_a_tracker_that_is_not_there_is_refused(tracker, message):
    with pytest.raises(ValueError, match=message):
        check_trackers(Config(model={"path": "a"}, trainer=tracking(tracker)).trainer.trackers)


def test_an_entry_point_of_a_deleted_package_is_not_listed(tmp_path, monkeypatch):
    """Its metadata may have been left behind; whoever asks for the name is told what is missing."""
    package = tmp_path / "deleted-1.0.dist-info"
    package.mkdir()
    (package / "METADATA").write_text("Metadata-Version: 2.1\nName: deleted\nVersion: 1.0\n")
    (package / "entry_points.txt").write_text("[mmr1.things]\nadded = deleted_package:mine\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    registry = Registry("thing", {}, group="mmr1.things")
    assert "added" not in registry.names()
    with pytest.raises(ValueError, match="No module named 'deleted_package'"):
        registry.load("added")
