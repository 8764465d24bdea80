"""Runs what docs/validation.md says of each fault, and prints what held.

python scripts/dev/faults.py               every row; hours, most of them the rows of the soak
python scripts/dev/faults.py disk video    rows in which one of the words occurs
python scripts/dev/faults.py --quick       without the tests that are marked slow
python scripts/dev/faults.py --without soak

Each row names a test that brings the fault about for real. The outcome of each test is appended to
runs/faults.jsonl, and a test that passed is not run again on the same commit: an interrupted run
continues. Exit code 1 if a row does not hold.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from rich.table import Table

REPOSITORY = Path(__file__).parents[2]
PAGE = REPOSITORY / "docs/validation.md"
HEAD = "| fault | what happens | what is lost | test |"
OUTCOMES = REPOSITORY / "runs/faults.jsonl"


@dataclass(frozen=True, slots=True)
class Fault:
    """A row of the page's table."""

    name: str
    happens: str
    lost: str
    test: str


@dataclass(eq=False)  # pytest keeps plugins in a set
class Outcomes:
    """A pytest plugin that keeps the outcome and the seconds of each test of a commit."""

    commit: str
    of_test: dict[str, tuple[str, float]] = field(default_factory=dict)

    @classmethod
    def read(cls) -> Outcomes:
        """The outcomes so far on this commit; none where files have changed since."""
        described = subprocess.run(
            ["git", "describe", "--always", "--dirty", "--abbrev=40"],
            cwd=REPOSITORY, capture_output=True, text=True, check=True,
        )  # fmt: skip
        outcomes = cls(described.stdout.strip())
        if OUTCOMES.exists() and not outcomes.commit.endswith("-dirty"):
            for line in OUTCOMES.read_text().splitlines():
                row = json.loads(line)
                if row["commit"] == outcomes.commit:
                    outcomes.of_test[row["test"]] = (row["outcome"], row["seconds"])
        return outcomes

    def pytest_collection_modifyitems(self, items: list[Any]) -> None:
        items[:] = [i for i in items if self.of_test.get(i.nodeid, ("",))[0] != "passed"]

    def pytest_runtest_logreport(self, report: Any) -> None:
        if report.when != "call" and report.outcome == "passed":
            return
        self.of_test[report.nodeid] = (report.outcome, report.duration)
        row = {"commit": self.commit, "test": report.nodeid}
        row |= {"outcome": report.outcome, "seconds": round(report.duration, 1)}
        OUTCOMES.parent.mkdir(exist_ok=True)
        with OUTCOMES.open("a") as file:
            file.write(json.dumps(row) + "\n")


def faults() -> Iterator[Fault]:
    """The rows of the table."""
    _, _, table = PAGE.read_text().partition(HEAD)
    for line in table.partition("\n\n")[0].splitlines()[2:]:
        *cells, test = (cell.strip() for cell in line.strip("|").split(" | "))
        yield Fault(*cells, test.strip("`| "))


def summary(outcomes: Sequence[str]) -> str:
    """The outcome of a row, of those of its tests."""
    failed, skipped = outcomes.count("failed"), outcomes.count("skipped")
    if not outcomes:
        return "slow"
    if failed:
        return f"{failed} of {len(outcomes)} FAILED"
    if skipped == len(outcomes):
        return "skipped"
    return f"held, {skipped} skipped" if skipped else "held"


def tests_of(fault: Fault, outcomes: Mapping[str, tuple[str, float]]) -> list[tuple[str, float]]:
    """The outcomes of a test with all its parameters, or of a whole file."""
    return [
        outcome
        for test, outcome in outcomes.items()
        if fault.test in (test.partition("::")[0], test.partition("[")[0])
    ]


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the chosen rows and print a table of them."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("words", nargs="*")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--without", nargs="*", default=[], help="words of rows to leave out")
    args = parser.parse_args(arguments)

    def named(fault: Fault, words: Sequence[str]) -> bool:
        return any(re.search(word, f"{fault.name} {fault.test}", re.I) for word in words)

    rows = [f for f in faults() if not args.words or named(f, args.words)]
    rows = [f for f in rows if not named(f, args.without)]
    outcomes = Outcomes.read()
    chosen = [] if args.quick else ["-m", "not gpu"]
    tests = dict.fromkeys(fault.test for fault in rows)
    os.chdir(REPOSITORY)
    sys.path.insert(0, str(REPOSITORY))
    pytest.main(["-q", *chosen, *tests], plugins=[outcomes])
    table = Table("fault", "what is lost", "outcome", "s", show_lines=True)
    table.columns[3].justify = "right"
    failed = False
    for fault in rows:
        own = tests_of(fault, outcomes.of_test)
        became = summary([outcome for outcome, _ in own])
        failed |= "FAILED" in became or (became == "slow" and not args.quick)
        table.add_row(fault.name, fault.lost, became, f"{sum(s for _, s in own):.0f}")
    Console(width=80, markup=False).print(table)
    sys.exit(failed)


if __name__ == "__main__":
    main()
