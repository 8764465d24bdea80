"""Commands killed at any moment: all their files or none, and nothing else beside them."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import time
from pathlib import Path

import pytest

from datasets_prep.manifest import content_hashes

pytestmark = pytest.mark.slow


@pytest.fixture
def records(tmp_path: Path) -> Path:
    (tmp_path / "in").mkdir()
    with (tmp_path / "in/records.jsonl").open("w") as file:
        for number in range(30_000):
            message = {"role": "user", "content": f"How many are {number} and one?"}
            row = {"version": 1, "id": f"r{number}", "messages": [message]}
            file.write(json.dumps(row) + "\n")
    return tmp_path / "in/records.jsonl"


def killed(arguments: list[object], after_s: float) -> None:
    command = [sys.executable, "-m", "datasets_prep", *map(str, arguments)]
    run = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    time.sleep(after_s)
    run.kill()
    run.wait()


def finished(arguments: list[object]) -> float:
    begin = time.monotonic()
    command = [sys.executable, "-m", "datasets_prep", *map(str, arguments)]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    return time.monotonic() - begin


@pytest.mark.skipif(not hasattr(os, "O_TMPFILE"), reason="a draft has a name without O_TMPFILE")
@pytest.mark.parametrize("output", ["a new folder", "the folder of the records"])
def test_split(records: Path, output: str) -> None:
    """It left train.jsonl, and refused to run again because of it."""
    folder = records.parent if output == "the folder of the records" else records.parent / "out"
    before = content_hashes(records.parent)
    rng = random.Random(os.getpid())
    split = ["split", records, "train=0.5", "eval=0.5", "--output"]
    takes = finished([*split, records.parent.parent / "other"])
    for _ in range(4):
        killed([*split, folder], rng.uniform(0.2, 1) * takes)
        made = {path.name for path in folder.glob("*.jsonl")} - {records.name}
        assert made in (set(), {"train.jsonl", "eval.jsonl"})
        if made:
            break
        assert {n: h for n, h in content_hashes(records.parent).items() if ".making" not in n} == (
            before
        )
    else:
        finished([*split, folder])
    names = {path.name for path in folder.iterdir()} - {records.name, "out"}
    assert names == {"train.jsonl", "eval.jsonl"}


@pytest.mark.skipif(not hasattr(os, "O_TMPFILE"), reason="a draft has a name without O_TMPFILE")
def test_mix_and_filter(records: Path) -> None:
    rng = random.Random(os.getpid())
    out = records.parent / "new.jsonl"
    for command in (
        ["mix", f"{records}=1", "--count", 20_000, "--output", out],
        ["filter", records, "--rule", "true", "--output", out],
    ):
        takes = finished(command)
        out.unlink()
        for _ in range(2):
            killed(command, rng.uniform(0.2, 1) * takes)
            names = {path.name for path in records.parent.iterdir()}
            assert names in ({records.name}, {records.name, out.name})
            out.unlink(missing_ok=True)
