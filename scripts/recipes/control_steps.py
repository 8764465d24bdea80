"""How many supervised steps take as long as an RL run did?

    python scripts/recipes/control_steps.py runs/quickstart/sft runs/quickstart/rl

A control that goes on for so many shows which of RL's gain is just that of more compute.
"""

from __future__ import annotations

import sys
from pathlib import Path
from statistics import median

from mmr1.report.curves import read_metrics


def control_steps(sft: Path, rl: Path) -> int:
    """As many times RL's number of steps as one of its steps outlasts a supervised one.

    Medians of both runs' metrics: first steps are slow, and other work on the machine may hold up
    some steps of one run and not of the other.
    """
    spent, each = (read_metrics(run / "metrics.jsonl")["time/step"] for run in (rl, sft))
    return max(1, round(len(spent) * median(spent) / median(each)))


if __name__ == "__main__":
    print(control_steps(*map(Path, sys.argv[1:])))
