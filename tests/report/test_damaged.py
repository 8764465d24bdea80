"""A damaged file of a run is one line that names the file, wherever the damage is."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from mmr1.report.report_command import make_report
from tests.report.run_files import completion, image, prompt, write_run

BAD = (None, 1, float("inf"), "x", [], {}, [None], True, "\ud800", 10**400, {"a": {"b": 1}})
ROLLOUTS = "rollouts/step_000001.jsonl"
FILES = (ROLLOUTS, "metrics.jsonl", "quarantine.jsonl", "summary.json", "config.yaml")
Spot = tuple[str | int, ...]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """With boxes, a picture, and a conversation with a tool."""
    folder = tmp_path_factory.mktemp("damaged")
    picture = image(folder / "a.png", (8, 8))
    call = {"name": "zoom", "arguments": {}, "error": None}
    turns = [
        {"role": "assistant", "text": "x", "tokens": 3, "media": [], "calls": [call]},
        {"role": "tool", "text": "y", "tokens": 1, "media": [picture], "calls": []},
    ]
    completions = [completion("<answer>[1,2,3,4]</answer>", turns=turns), completion("b", None)]
    group = prompt("1", completions, answer=[[1, 2, 3, 4]], task="grounding", media=[picture])
    return write_run(
        folder / "run",
        {1: [group]},
        functions={"boxes": {"type": "iou", "space": "original"}},
        metrics=[{"step": 1, "reward/mean": 0.5}],
        quarantined=[{"data": "d", "row": "1", "reason": "r"}],
        faults={"engine/died": 1},
    )


def spots(value: Any, path: Spot = ()) -> Iterator[Spot]:
    yield path
    below: Any = value.items() if isinstance(value, dict) else ()
    for key, inner in enumerate(value) if isinstance(value, list) else below:
        yield from spots(inner, (*path, key))


def damages(value: Any) -> Iterator[Any]:
    """The value with each of its parts gone, and with each in turn something else."""
    yield from BAD
    for path in spots(value):
        for bad in ("gone", *BAD) if path else ():
            changed = copy.deepcopy(value)
            part = changed
            for key in path[:-1]:
                part = part[key]
            if bad == "gone":
                del part[path[-1]]
            else:
                part[path[-1]] = bad
            yield changed


@pytest.mark.parametrize("name", FILES)
def test_damage_anywhere_is_a_report_or_one_line(name: str, run: Path, tmp_path: Path) -> None:
    file, refused = run / name, 0
    text = file.read_text()
    is_yaml = name.endswith("yaml")
    try:
        whole = yaml.safe_load(text) if is_yaml else json.loads(text.splitlines()[0])
        for damaged in damages(whole):
            file.write_text(yaml.safe_dump(damaged) if is_yaml else json.dumps(damaged) + "\n")
            try:
                make_report([run], tmp_path / "report.html", 10**6)
            except ValueError as error:
                assert type(error) is ValueError
                assert str(file) in str(error)
                refused += 1
    finally:
        file.write_text(text)
    assert refused


def test_the_line_and_the_key_are_named(run: Path, tmp_path: Path, mmr1: Any) -> None:
    file = run / ROLLOUTS
    text = file.read_text()
    row = json.loads(text)
    del row["completions"][1]["text"]
    file.write_text(text + json.dumps(row) + "\n")
    try:
        code, _, said = mmr1("report", run, "--output", tmp_path / "report.html")
    finally:
        file.write_text(text)
    assert code == 2
    assert f"{file}:2: completions.1.text: Field required" in said
