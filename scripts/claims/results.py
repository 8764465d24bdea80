"""The stored results of a claim: one entry for each arm and seed."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from mmr1.files import atomic
from mmr1_contrib.lab.compare.plan import Hypothesis
from mmr1_contrib.lab.compare.statistics import Estimate, Verdict, estimate, paired, verdict
from scripts.claims.claim import CLAIMS

REPOSITORY = CLAIMS.parents[1]


@dataclass(frozen=True, slots=True)
class Result:
    """The result of one trial.

    Attributes:
        curve: Means over equal parts of the trial.
        cpu_seconds: Of the process, on one thread; None where it was not measured.
        commit: Of the code; ``+`` at its end if that was changed.
    """

    arm: str
    seed: int
    numbers: dict[str, float]
    curve: list[float]
    cpu_seconds: int | None
    commit: str


def result_file(name: str) -> Path:
    return CLAIMS / name / "result.json"


def read_results(name: str) -> list[Result]:
    """The stored results; none before the first run."""
    path = result_file(name)
    return [Result(**row) for row in json.loads(path.read_text())] if path.is_file() else []


def write_results(path: Path, results: Sequence[Result]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with atomic(path) as file:
        file.write(json.dumps([asdict(result) for result in results], indent=1) + "\n")


def rounded(value: float) -> float:
    return float(f"{value:.5g}")


def current_commit() -> str:
    """The commit of the running code, with ``+`` behind it if it has changed since."""
    of_code = ("mmr1", "datasets_prep", "scripts/claims", ":!scripts/claims/*/result.json")
    head, changed = (
        subprocess.run(
            ["git", "-C", REPOSITORY, *command], capture_output=True, text=True, check=True
        ).stdout.strip()
        for command in (("rev-parse", "HEAD"), ("status", "--porcelain", "--", *of_code))
    )
    return head[:12] + ("+" if changed else "")


def by_seed(results: Sequence[Result], arm: str, measure: str) -> list[float]:
    """The values of one arm, in the order of the seeds."""
    own = sorted((r for r in results if r.arm == arm), key=lambda r: r.seed)
    return [result.numbers[measure] for result in own]


def of_arm(results: Sequence[Result], arm: str, measure: str) -> Estimate:
    return estimate(by_seed(results, arm, measure))


def difference_of(results: Sequence[Result], hypothesis: Hypothesis) -> tuple[Estimate, Verdict]:
    """The difference that a hypothesis is about, paired by seed, and what follows."""
    arms = (hypothesis.more, hypothesis.less)
    more, less = (by_seed(results, arm, hypothesis.metric) for arm in arms)
    difference = paired(more, less)
    return difference, verdict(difference, hypothesis.smallest)
