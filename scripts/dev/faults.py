"""Runs what docs/fault_tests.md says of each fault, and prints what held.

python scripts/dev/faults.py               every row; hours, most of them the rows of the soak
python scripts/dev/faults.py disk video    rows in which one of the words occurs
python scripts/dev/faults.py --quick       without the tests that are marked slow
python scripts/dev/faults.py --without soak

Each row names a test that brings the fault about for real. Exit code 1 if one does not hold.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import tempfile
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


def run(tests: Sequence[str], quick: bool) -> list[ElementTree.Element]:
    """Run the tests in one process, whose output is shown; the cases that ran."""
    chosen = [] if quick else ["-m", "not gpu"]
    with tempfile.NamedTemporaryFile(suffix=".xml") as report:
        command = [sys.executable, "-m", "pytest", "-q", "--junitxml", report.name, *chosen]
        subprocess.run([*command, *dict.fromkeys(tests)], cwd=REPOSITORY)
        return ElementTree.parse(report.name).getroot().findall(".//testcase")


def outcome(cases: Sequence[ElementTree.Element]) -> str:
    """The outcome of the cases of a test."""
    bad = [case for case in cases if {child.tag for child in case} & {"failure", "error"}]
    skipped = [case for case in cases if case.find("skipped") is not None]
    if not cases:
        return "slow"
    if bad:
        return f"{len(bad)} of {len(cases)} FAILED"
    if len(skipped) == len(cases):
        return "skipped"
    return f"held, {len(skipped)} skipped" if skipped else "held"


def cases_of(test: str, cases: Sequence[ElementTree.Element]) -> list[ElementTree.Element]:
    """The cases of a test with all its parameters, or of a whole file."""
    file, _, name = test.partition("::")
    module = file.removesuffix(".py").replace("/", ".")
    of_file = [case for case in cases if case.get("classname") == module]
    return [case for case in of_file if name in ("", case.get("name", "").partition("[")[0])]


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
    cases = run([fault.test for fault in rows], args.quick)
    table = Table("fault", "what is lost", "outcome", "s", show_lines=True)
    table.columns[3].justify = "right"
    failed = False
    for fault in rows:
        own = cases_of(fault.test, cases)
        became = outcome(own)
        failed |= "FAILED" in became or (became == "slow" and not args.quick)
        seconds = sum(float(case.get("time", 0)) for case in own)
        table.add_row(fault.name, fault.lost, became, f"{seconds:.0f}")
    Console(width=80, markup=False).print(table)
    sys.exit(failed)


if __name__ == "__main__":
    main()
