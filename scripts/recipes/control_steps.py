"""The number of SFT steps that take as long as an RL run.

    python scripts/recipes/control_steps.py runs/quickstart/sft runs/quickstart/rl

A control with that many steps shows how much of RL's gain is due to compute.
"""

from __future__ import annotations

import sys
from pathlib import Path
from statistics import median

from mmr1.report.curves import read_metrics


def control_steps(sft: Path, rl: Path) -> int:
    """RL's number of steps, times the ratio of the median step times of RL and SFT.

    Medians, because first steps are slow and other work on the machine delays some steps.
    """
    spent, each = (read_metrics(run / "metrics.jsonl")["time/step"] for run in (rl, sft))
    return max(1, round(len(spent) * median(spent) / median(each)))


if __name__ == "__main__":
    print(control_steps(*map(Path, sys.argv[1:])))
