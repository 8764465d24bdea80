"""The deadline of a gold answer is charged with the CPU time of reading it, nothing else."""

from __future__ import annotations

import subprocess
import sys

import pytest

# A process of its own, in which the verifier has not been imported yet.
PROGRAM = """
import importlib, sys, time
from datasets_prep import finish
from mmr1.types import Sample

finish.GOLD_SECONDS = 1
load = importlib.import_module

def slow(name, *rest):
    if name == "mmr1.rewards.math.symbolic":
        time.sleep(2)
    module = load(name, *rest)
    if name == "mmr1.rewards.math.symbolic" and sys.argv[1] != "import":
        module.check_gold = reading
    return module

def reading(gold):
    if sys.argv[1] == "wait":
        time.sleep(2)
    while sys.argv[1] == "turn":
        pass

importlib.import_module = slow
finish.check_gold(Sample("s", (), r"\\sqrt{12}", "math"))
"""


@pytest.mark.parametrize(
    ("what", "told"),
    [("import", None), ("wait", None), ("turn", "cannot be read within 1 s")],
)
def test_only_work_is_charged(what: str, told: str | None) -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, what], capture_output=True, text=True, check=False
    )
    if told is None:
        assert done.returncode == 0, done.stderr
    else:
        assert told in done.stderr
