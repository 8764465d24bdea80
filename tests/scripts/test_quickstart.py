"""The quickstart continues what was interrupted, and keeps what has ended."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from mmr1.registry import import_file
from tests.paths import REPOSITORY


class StoppedError(Exception):
    """The quickstart was interrupted."""


@pytest.fixture
def quickstart(tmp_path, monkeypatch) -> Any:
    """The script in an empty folder; its figures are not drawn."""
    monkeypatch.chdir(tmp_path)
    script = import_file(REPOSITORY / "scripts/recipes/quickstart/quickstart.py")
    for name in ("plot_rewards", "print_table", "read_metrics"):
        monkeypatch.setattr(script, name, lambda *_: None)
    monkeypatch.setattr(script, "read_result", lambda _: {})
    monkeypatch.setattr(script, "summarise", lambda *_: {})
    return script


def called(script: Any, monkeypatch, stop_at: str | None = None) -> list[list[str]]:
    """What the quickstart runs, up to a command that is interrupted."""
    calls: list[list[str]] = []

    def call(*arguments: object) -> None:
        calls.append([str(argument) for argument in arguments])
        if stop_at in calls[-1]:
            raise StoppedError
        for name in ("sft", "rl"):
            (script.RUN / name / "checkpoints/step_000001").mkdir(parents=True, exist_ok=True)

    monkeypatch.setattr(script, "call", call)
    arguments = ["seed=3"]
    if stop_at is None:
        script.main(arguments)
    else:
        with pytest.raises(StoppedError):
            script.main(arguments)
    return calls


def resumes(call: list[str]) -> bool:
    return "--resume" in call


def is_training(call: list[str]) -> bool:
    return any(word in call for word in ("sft", "train"))


@pytest.mark.parametrize("stage", ["sft", "train", "eval"])
def test_what_was_interrupted_continues(stage, quickstart, monkeypatch):
    begun = called(quickstart, monkeypatch, stop_at=stage)
    again = called(quickstart, monkeypatch)
    assert [*begun[:2], *again] == called(quickstart, monkeypatch)
    assert all(map(resumes, filter(is_training, again)))


@pytest.mark.parametrize("stage", ["make", "new"])
def test_data_that_are_not_whole_are_made_anew(stage, quickstart, monkeypatch):
    called(quickstart, monkeypatch, stop_at=stage)
    assert any("make" in call for call in called(quickstart, monkeypatch))


def test_a_quickstart_that_has_ended_is_kept(quickstart, monkeypatch):
    called(quickstart, monkeypatch)
    called(quickstart, monkeypatch)
    (kept,) = Path("runs").glob("quickstart-*")
    assert json.loads((kept / "arguments.json").read_text()) == ["seed=3"]
    assert (kept / "summary.json").is_file()


def test_other_arguments_begin_anew(quickstart, monkeypatch):
    called(quickstart, monkeypatch, stop_at="train")
    assert quickstart.was_interrupted(["seed=3"])
    assert not quickstart.was_interrupted(["seed=4"])
