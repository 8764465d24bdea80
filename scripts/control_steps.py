"""How many supervised steps take as long as an RL run did?

    python scripts/control_steps.py runs/quickstart/sft runs/quickstart/rl

A control that goes on for so many shows which of RL's gain is just that of more compute.
"""

from __future__ import annotations

import sys
from pathlib import Path
from statistics import median

from mmr1.report.curves import read_metrics


def control_steps(sft: Path, rl: Path) -> int:
    """The seconds of all of RL's steps over those of a supervised one, from both runs' metrics.

    The median, since the first supervised steps are slow and would shorten the control.
    """
    spent = sum(read_metrics(rl / "metrics.jsonl")["time/step"])
    return max(1, round(spent / median(read_metrics(sft / "metrics.jsonl")["time/step"])))


if __name__ == "__main__":
    print(control_steps(*map(Path, sys.argv[1:])))
