"""Change the code in small ways, a mutant at a time, and run the tests that execute what changed.

    python scripts/dev/mutants.py --seed 61 --count 100
    python scripts/dev/mutants.py --seed 61 --count 20 losses optimizer   # of files with a word

A mutant that fails a test is killed. One that fails none survives: a change of behaviour that the
tests would not notice, unless it changes nothing. ``mutants_equivalent.yaml`` lists the mutants
that change nothing, with the reason.

First every test is traced once, to know which lines it executes and how long it takes. A mutant
then runs the tests that execute its statement, the quickest first, until one fails or the next
would exceed ``--budget``. Each mutant is a process of its own with a time limit, in which an import
hook compiles the changed source: no file is written, and processes that a test spawns do not see
the change. What is known is kept in ``runs/mutants`` while the code and the tests stay the same, so
an interrupted run continues.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import sys
import threading
import time
from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from hashlib import sha256
from importlib import import_module
from importlib.machinery import ModuleSpec, SourceFileLoader
from importlib.util import spec_from_file_location
from itertools import accumulate
from pathlib import Path
from types import CodeType
from typing import Any

import pytest
import yaml
from hypothesis import settings
from mutations import Mutant, mutants

REPOSITORY = Path(__file__).parents[2]
FOLDER = REPOSITORY / "runs/mutants"
EQUIVALENT = Path(__file__).with_name("mutants_equivalent.yaml")
FORWARD = ("packing", "sequences", "micro_batches", "logprob_head", "context_packing")
TARGETS = (
    *("mmr1/algorithms/**/*.py", "mmr1/trainer/models/optimizer.py"),
    *(f"mmr1/trainer/forward/{name}.py" for name in FORWARD),
)
NO_TESTS = pytest.ExitCode.NO_TESTS_COLLECTED
ROOMS = ("algorithms", "forward", "models", "sampling")
TESTS = (
    *(f"tests/trainer/{room}/test_*.py" for room in ROOMS),
    *(f"tests/trainer/distributed/test_{name}.py" for name in ("context", "shards")),
    *("tests/rollout/test_conversations.py", "tests/test_docstring_examples.py"),
    "tests/trainer/runs/test_checkpoint.py",
)


# --- which tests execute it ---


class Tracer:
    """A pytest plugin that knows the lines of the targets that each test of a file executes.

    A fixture that tests share counts for all of them. Tests that do not pass are left out.
    """

    def __init__(self, targets: Sequence[str]) -> None:
        self._files = {str(REPOSITORY / target): target for target in targets}
        self._shared: set[str] = set()
        self._lines: set[str] = set()
        self.tests: dict[str, Any] = {}

    def _call(self, frame: Any, event: str, argument: object) -> Any:
        file = self._files.get(frame.f_code.co_filename)

        def line(frame: Any, event: str, argument: object) -> Any:
            self._lines.add(f"{file}:{frame.f_lineno}")
            return line

        return None if file is None else line

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        self._lines, started = set(), time.monotonic()
        test = self.tests[item.nodeid] = {"lines": self._lines}
        threading.settrace(self._call)
        sys.settrace(self._call)
        outcome = yield
        sys.settrace(None)
        test["seconds"] = round(time.monotonic() - started, 2)
        return outcome

    @pytest.hookimpl(wrapper=True)
    def pytest_fixture_setup(self, fixturedef: Any) -> Iterator[None]:
        before = self._lines
        if fixturedef.scope != "function":
            self._lines = self._shared
        try:
            return (yield)
        finally:
            self._lines = before

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if not report.passed:
            self.tests.pop(report.nodeid, None)

    def found(self) -> dict[str, Any]:
        """Return seconds and executed lines of each test that passed."""
        lines = {test: sorted(row["lines"] | self._shared) for test, row in self.tests.items()}
        return {test: {**self.tests[test], "lines": lines[test]} for test in self.tests}


def traced(targets: Sequence[str]) -> dict[str, Any]:
    """Return what :class:`Tracer` finds in each test file, traced again if it has changed."""
    code = b"".join((REPOSITORY / target).read_bytes() for target in targets)
    tests: dict[str, Any] = {}
    for file in sorted(path for glob in TESTS for path in REPOSITORY.glob(glob)):
        kept = FOLDER / f"{sha256(code + file.read_bytes()).hexdigest()[:16]}.json"
        if not kept.exists():
            print(f"tracing {file.relative_to(REPOSITORY)}", flush=True)
            ended = in_fork(partial(trace, file, kept, targets), 3600)
            if not kept.exists():
                raise RuntimeError(f"{file} cannot be traced; {FOLDER}/last.log says why")
            if ended == pytest.ExitCode.TESTS_FAILED:
                print("some of its tests fail; they are left out")
        tests |= json.loads(kept.read_text())
    return tests


def trace(file: Path, kept: Path, targets: Sequence[str]) -> int:
    """Run the tests of a file under :class:`Tracer` and keep what it finds."""
    code = run_tests([str(file)], tracer := Tracer(targets))
    if code in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED, NO_TESTS):
        kept.write_text(json.dumps(tracer.found()))
    return code


def covering(mutant: Mutant, tests: Mapping[str, Any], budget: float) -> list[str]:
    """Return the tests that execute the changed lines, the quickest first, within the budget."""
    first, end = mutant.lines
    lines = {f"{mutant.file}:{line}" for line in range(first, end)}
    seconds = {t: row["seconds"] for t, row in tests.items() if not lines.isdisjoint(row["lines"])}
    total = list(accumulate(sorted(seconds.values())))
    return sorted(seconds, key=seconds.__getitem__)[: max(1, bisect_right(total, budget))]


# --- what becomes of a mutant ---


class _Hook(SourceFileLoader):
    """Loads the mutant in the place of its file; also a finder of ``sys.meta_path``."""

    def __init__(self, mutant: Mutant) -> None:
        module = mutant.file.removesuffix(".py").replace("/", ".").removesuffix(".__init__")
        super().__init__(module, str(REPOSITORY / mutant.file))
        self._source = mutant.source

    def get_code(self, fullname: str) -> CodeType:
        return compile(self._source, self.path, "exec")

    def find_spec(self, name: str, *where: object) -> ModuleSpec | None:
        return spec_from_file_location(name, self.path, loader=self) if name == self.name else None


class _Chosen:
    """A pytest plugin that runs only these tests, in this order."""

    def __init__(self, tests: Sequence[str]) -> None:
        self._tests = tests

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        by_name = {item.nodeid: item for item in items}
        items[:] = [by_name[test] for test in self._tests]


def run_tests(files: Sequence[str], plugin: object, *options: str) -> int:
    """Run tests in this process; nothing is kept in the checkout."""
    settings.register_profile("mutants", database=None, deadline=None, derandomize=True)
    settings.load_profile("mutants")
    quiet = ("-q", "--no-header", "--tb=short", "-p", "no:cacheprovider", "-W", "ignore")
    return int(pytest.main([*quiet, *options, *files], plugins=[plugin]))


def in_fork(compute: Callable[[], int], limit: float) -> int | None:
    """Return the exit code of ``compute`` in a process of its own; None beyond the limit."""
    if (child := os.fork()) == 0:
        os.setsid()
        with (FOLDER / "last.log").open("w") as log:
            os.dup2(log.fileno(), 1)
            os.dup2(log.fileno(), 2)
        try:
            os._exit(compute())
        finally:
            os._exit(1)  # an exception does not get into the loop over the mutants
    ends, code = time.monotonic() + limit, None
    while code is None and time.monotonic() < ends:
        done, status = os.waitpid(child, os.WNOHANG)
        code = os.waitstatus_to_exitcode(status) if done else None
        time.sleep(0.05)
    with suppress(ProcessLookupError):
        os.killpg(child, signal.SIGKILL)  # and what the tests have started
    if code is None:
        os.waitpid(child, 0)
    return code


def outcome(mutant: Mutant, tests: Mapping[str, Any], budget: float) -> str:
    """Return what becomes of a mutant: ``killed``, also if its time is over, or ``survived``."""
    chosen = covering(mutant, tests, budget)
    if not chosen:  # no test executes it
        return "survived"
    files = sorted({test.partition("::")[0] for test in chosen})
    read = "".join(
        [mutant.source, *sorted(chosen), *((REPOSITORY / file).read_text() for file in files)]
    )
    kept = FOLDER / f"{sha256(read.encode()).hexdigest()[:16]}.txt"

    def compute() -> int:
        sys.meta_path.insert(0, _Hook(mutant))
        return run_tests(files, _Chosen(chosen), "-x")

    if not kept.exists():
        code = in_fork(compute, 60 + 10 * sum(tests[test]["seconds"] for test in chosen))
        kept.write_text("survived" if code == 0 else "killed")  # an endless loop is killed, too
    return kept.read_text()


def print_table(found: Mapping[str, Counter[str]]) -> None:
    """Print what became of the mutants of each file, as Markdown."""
    columns = ("killed", "survived", "equivalent")
    rows = {**found, "all": sum(found.values(), Counter())}
    print(f"\n| file | mutants | {' | '.join(columns)} |", "|---|---|---|---|---|", sep="\n")
    for file, counts in rows.items():
        numbers = " | ".join(str(n) for n in (counts.total(), *(counts[c] for c in columns)))
        print(f"| {file.removeprefix('mmr1/trainer/')} | {numbers} |")
    killed, survived = rows["all"]["killed"], rows["all"]["survived"]
    print(f"\nkilled of those that are not equivalent: {killed / max(1, killed + survived):.1%}")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("words", nargs="*", help="only files with one of these in their path")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--count", type=int, default=100, help="mutants to draw; 0: all")
    parser.add_argument("--budget", type=float, default=20, help="seconds of tests a mutant")
    args = parser.parse_args()
    files = sorted(
        str(p.relative_to(REPOSITORY)) for glob in TARGETS for p in REPOSITORY.glob(glob)
    )
    FOLDER.mkdir(parents=True, exist_ok=True)
    for module in ("peft", "datasets", "mmr1.rollout.hf", "mmr1.vision.build"):
        import_module(module)  # once, for all forks; nothing that could import a target
    tests = traced(files)
    words = args.words or [""]
    changed = [file for file in files if any(word in file for word in words)]
    pool = [m for file in changed for m in mutants(file, (REPOSITORY / file).read_bytes())]
    drawn = random.Random(args.seed).sample(pool, min(args.count or len(pool), len(pool)))
    equivalent = yaml.safe_load(EQUIVALENT.read_text())
    found: dict[str, Counter[str]] = defaultdict(Counter)
    for mutant in sorted(drawn, key=lambda m: (m.file, m.lines)):
        listed = mutant.change in equivalent.get(mutant.file, {})
        result = "equivalent" if listed else outcome(mutant, tests, args.budget)
        found[mutant.file][result] += 1
        print(f"{result:10} {mutant.file}:{mutant.lines[0]} {mutant.change}", flush=True)
    print_table(found)
    return 0


if __name__ == "__main__":
    sys.exit(main())
