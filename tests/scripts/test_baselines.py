"""``scripts/dev/baselines.py``: what has changed is told, and nothing else."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from scripts.dev import baselines

BEFORE = {"a.yaml": {"seed": 1, "lr": 0.1}, "b.yaml": {"seed": 1, "lr": 0.1}}


@pytest.fixture
def run(monkeypatch, tmp_path, capsys):
    """The exit code and the lines of a call that finds these items."""

    def call(found: dict | Exception, aim: str) -> tuple[int, list[str]]:
        def section(work: Path) -> dict:
            if isinstance(found, Exception):
                raise found
            return found

        monkeypatch.setattr(baselines, "SECTIONS", {"made": section})
        monkeypatch.setattr(sys, "argv", ["baselines.py", aim, str(tmp_path / "file.json")])
        return baselines.main(), capsys.readouterr().out.splitlines()

    return call


def test_what_is_equal_is_no_difference(run):
    assert run(BEFORE, "--write") == (0, [])
    code, lines = run(BEFORE, "--compare")
    assert (code, len(lines)) == (0, 1)


def test_a_change_is_told_once_for_all_items(run):
    run(BEFORE, "--write")
    after = {name: {**keys, "seed": 2} for name, keys in BEFORE.items()}
    code, (head, line) = run(after, "--compare")
    assert (code, head.split()[-2:]) == (1, ["2", "differences"])
    assert line.split() == ["2x,", "a.yaml", "seed", "1", ">", "2"]


@pytest.mark.parametrize(
    ("after", "told"),
    [
        ({**BEFORE, "c.yaml": {}}, ["c.yaml", "-", ">", "there"]),
        ({"a.yaml": BEFORE["a.yaml"]}, ["b.yaml", "there", ">", "-"]),
        ({**BEFORE, "b.yaml": {"seed": 1}}, ["b.yaml", "lr", "0.1", ">", "-"]),
        ({**BEFORE, "b.yaml": {**BEFORE["b.yaml"], "n": None}}, ["b.yaml", "n", "-", ">", "null"]),
        ({**BEFORE, "a.yaml": {"seed": "1", "lr": 0.1}}, ["a.yaml", "seed", "1", ">", '"1"']),
    ],
)
def test_what_comes_and_goes_is_told(run, after, told):
    run(BEFORE, "--write")
    code, lines = run(after, "--compare")
    assert (code, [line.split() for line in lines[1:]]) == (1, [told])


def test_a_section_that_cannot_be_collected_differs(run):
    run(BEFORE, "--write")
    code, lines = run(ImportError("no such package"), "--compare")
    assert code == 1
    assert lines[0].split(maxsplit=1)[1] == "left out: ImportError: no such package"


def test_of_long_values_the_difference_is_shown(run):
    run({"a": {"text": f"{'same ' * 9}old"}}, "--write")
    _, lines = run({"a": {"text": f"{'same ' * 9}new"}}, "--compare")
    assert 'ame old" > ame new"' in " ".join(lines[1].split())


def test_lines_fit_in_80_columns(run):
    run({f"{'folder/' * 20}{n}": {"key." * 30: "x" * 200} for n in range(30)}, "--write")
    _, lines = run({f"{'folder/' * 20}{n}": {"key." * 30: n} for n in range(30)}, "--compare")
    assert len(lines) == baselines.SHOWN + 2
    assert max(map(len, lines)) <= 80
