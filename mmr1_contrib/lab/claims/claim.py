"""A claim: a comparison in a folder, with its stored results.

The folder holds ``claim.yaml`` with arms, metrics and hypotheses, the configurations that it names,
and ``result.json``. The claims of a checkout are in ``scripts/claims``.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from mmr1.files import atomic
from mmr1_contrib.lab.compare.plan import ComparisonFile, Hypothesis, read_comparison
from mmr1_contrib.lab.compare.statistics import Estimate, Verdict, estimate, paired, verdict


@dataclass(frozen=True, slots=True)
class Result:
    """The result of one trial.

    Attributes:
        curve: Means over equal parts of the trial.
        cpu_seconds: CPU seconds of the process, on one thread; None if they were not measured.
        commit: Commit of the code; ends with ``+`` if the code had changes.
    """

    arm: str
    seed: int
    numbers: dict[str, float]
    curve: list[float]
    cpu_seconds: int | None
    commit: str


@dataclass(frozen=True, slots=True)
class Claim:
    """A claim and its stored results.

    Attributes:
        results: One entry for each arm and seed; empty before the first run.
    """

    folder: Path
    comparison: ComparisonFile
    results: Sequence[Result]

    @property
    def name(self) -> str:
        """The name of its folder."""
        return self.folder.name


def claim_names(claims: Path) -> list[str]:
    """Return the names of the folders in ``claims`` that hold a claim."""
    return sorted(path.parent.name for path in claims.glob("*/claim.yaml"))


def claim_file(folder: Path) -> Path:
    """Return the path of a claim's comparison."""
    return folder / "claim.yaml"


def result_file(folder: Path) -> Path:
    """Return the path of a claim's stored results."""
    return folder / "result.json"


def read_claim(folder: Path) -> Claim:
    """Read a claim and its stored results.

    Raises:
        ValueError: If the folder holds no claim, or the claim cannot be read.
    """
    stored = result_file(folder)
    rows = json.loads(stored.read_text()) if stored.is_file() else []
    return Claim(folder, read_comparison(claim_file(folder)), [Result(**row) for row in rows])


def write_results(path: Path, results: Sequence[Result]) -> None:
    """Write results as JSON."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with atomic(path) as file:
        file.write(json.dumps([asdict(result) for result in results], indent=1) + "\n")


def values_by_seed(results: Sequence[Result], arm: str, measure: str) -> list[float]:
    """Return the values of one arm, in the order of the seeds."""
    of_arm = sorted((r for r in results if r.arm == arm), key=lambda r: r.seed)
    return [result.numbers[measure] for result in of_arm]


def arm_estimate(results: Sequence[Result], arm: str, measure: str) -> Estimate:
    """Return the mean of one arm over its seeds, with its interval."""
    return estimate(values_by_seed(results, arm, measure))


def hypothesis_verdict(
    results: Sequence[Result], hypothesis: Hypothesis
) -> tuple[Estimate, Verdict]:
    """Return the difference that a hypothesis is about, paired by seed, and its verdict."""
    arms = (hypothesis.more, hypothesis.less)
    more, less = (values_by_seed(results, arm, hypothesis.metric) for arm in arms)
    difference = paired(more, less)
    return difference, verdict(difference, hypothesis.smallest)
