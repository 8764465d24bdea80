"""Runs what docs/fault_tests.md says of each fault, and prints what held.

python scripts/dev/faults.py               every row; hours, most of them the rows of the soak
python scripts/dev/faults.py disk video    rows in which one of the words occurs
python scripts/dev/faults.py --quick       without the tests that are marked slow

Each row names a test that brings the fault about for real. Exit code 1 if one does not hold.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from xml.etree import ElementTree

from rich.console import Console
from rich.table import Table

REPOSITORY = Path(__file__).parents[2]
PAGE = REPOSITORY / "docs/fault_tests.md"
HEAD = "| fault | what happens | what is lost | test |"


@dataclass(frozen=True, slots=True)
class Fault:
    """A row of the page's table."""

    name: str
    happens: str
    lost: str
    test: str


def faults() -> Iterator[Fault]:
    """The rows of the table."""
    _, _, table = PAGE.read_text().partition(HEAD)
    for line in table.partition("\n\n")[0].splitlines()[2:]:
        *cells, test = (cell.strip() for cell in line.strip("|").split(" | "))
        yield Fault(*cells, test.strip("`| "))


def outcome(test: str, quick: bool) -> str:
    """What became of a test, with all of its cases."""
    with tempfile.NamedTemporaryFile(suffix=".xml") as report:
        chosen = [] if quick else ["-m", "not gpu"]
        command = [sys.executable, "-m", "pytest", "-q", "--junitxml", report.name, *chosen, test]
        run = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True)
        if run.returncode == 5:  # all were deselected
            return "slow"
        cases = ElementTree.parse(report.name).getroot().findall(".//testcase")
    bad = [case for case in cases if {child.tag for child in case} & {"failure", "error"}]
    skipped = [case for case in cases if case.find("skipped") is not None]
    if bad or not cases:
        print(run.stdout[-4000:], file=sys.stderr)
        return f"{len(bad)} of {len(cases)} FAILED"
    if len(skipped) == len(cases):
        return "skipped"
    return f"held, {len(skipped)} skipped" if skipped else "held"


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the chosen rows and print a table of them."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("words", nargs="*")
    parser.add_argument("--quick", action="store_true")
    args = parser.parse_args(arguments)
    table = Table("fault", "what is lost", "outcome", "s", show_lines=True)
    table.columns[3].justify = "right"
    failed = False
    for fault in faults():
        if args.words and not any(re.search(word, fault.name, re.I) for word in args.words):
            continue
        begin = time.perf_counter()
        became = outcome(fault.test, args.quick)
        failed |= "FAILED" in became
        seconds = f"{time.perf_counter() - begin:.0f}"
        print(f"{fault.test}: {became}, {seconds} s", file=sys.stderr, flush=True)
        table.add_row(fault.name, fault.lost, became, seconds)
    Console(width=80, markup=False).print(table)
    sys.exit(failed)


if __name__ == "__main__":
    main()
