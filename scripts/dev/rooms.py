"""Lines of code of each room of the tree, beside what it may have, and what a module imports.

    python scripts/dev/rooms.py                          # of the checkout that this file is in
    python scripts/dev/rooms.py --root OTHER_CHECKOUT

A line counts if it has code on it: docstrings, comments and blank lines are free.
"""

from __future__ import annotations

import argparse
import ast
import io
import tokenize
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

LOOP = "mmr1.trainer.loop"
CLOSURE = {"files": 150, "lines": 26_000}
"""The most that importing the loop may read of our packages, imports inside functions apart."""
PACKAGES = ("mmr1", "mmr1_migrate", "mmr1_contrib", "datasets_prep")
CODELESS = {
    *(tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT),
    tokenize.ENDMARKER,
}


@dataclass(frozen=True)
class Room:
    """Files that one budget holds together.

    Attributes:
        start: Lines of code at e1d911a1.
        limit: Lines that it may have when the issue that rebuilds it is resolved.
        direction: Lines to which it should go.
        held: Lines that it may not exceed from now on: its limit, once it has reached it.
        paths: Folders and files, from the root. The most specific path of all rooms has a file.
    """

    start: int
    limit: int
    direction: int
    paths: str
    held: int | None = None


SFT = "mmr1/trainer/offline/sft.py mmr1/trainer/offline/training.py"
ROOMS = {
    "root": Room(2539, 2000, 1500, "mmr1"),
    "config": Room(3819, 2200, 1600, "mmr1/config mmr1/engines"),
    "algorithms": Room(999, 1400, 1200, "mmr1/algorithms", 1400),
    "data": Room(4261, 3200, 2400, "mmr1/data", 3900),
    "vision": Room(4351, 3600, 3000, "mmr1/vision", 3770),
    "rewards": Room(6864, 4500, 3600, "mmr1/rewards mmr1/reward_cli.py", 6800),
    "environments": Room(2082, 1000, 700, "mmr1/environments"),
    "rollout": Room(4092, 2700, 2400, "mmr1/rollout"),
    "trainer": Room(5835, 4200, 3700, f"mmr1/trainer {SFT}"),
    "forward": Room(2785, 2300, 2000, "mmr1/forward mmr1/trainer/forward", 2625),
    "distributed": Room(2004, 1700, 1500, "mmr1/distributed mmr1/trainer/distributed"),
    "runs": Room(1541, 1300, 1200, "mmr1/runs mmr1/trainer/runs"),
    "estimate": Room(1047, 600, 400, "mmr1/estimate"),
    "evaluation": Room(988, 900, 700, "mmr1/evaluation", 1005),
    "report, python, recipes": Room(1205, 1300, 1100, "mmr1/report mmr1/python mmr1/recipes", 1300),
    "offline, compare": Room(1631, 0, 0, "mmr1/trainer/offline mmr1/compare", 0),
    "mmr1_contrib": Room(6343, 8500, 7000, "mmr1_contrib mmr1_migrate", 11810),
    "datasets_prep": Room(4381, 3600, 3000, "datasets_prep", 3950),
    "scripts": Room(8146, 5000, 4000, "scripts"),
    "tests": Room(50135, 40000, 32000, "tests"),
}
WHOLE = Room(46043, 32900, 27000, "mmr1", 43500)
"""``mmr1`` alone; its limit is less than the sum of its rooms' limits."""
ROOM_OF = {path: name for name, room in ROOMS.items() for path in room.paths.split()}


def code_lines(source: str) -> int:
    """Count the lines that have code on them; lines of a text in code count, as code does."""
    documented: set[int] = set()
    for node in ast.walk(ast.parse(source)):
        documented.update(_docstring_lines(node))
    lines: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type not in CODELESS:
            lines.update(range(token.start[0], token.end[0] + 1))
    return len(lines - documented)


def _docstring_lines(node: ast.AST) -> range:
    if not isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
        return range(0)
    if ast.get_docstring(node, clean=False) is None:
        return range(0)
    text = node.body[0]
    return range(text.lineno, (text.end_lineno or text.lineno) + 1)


def room_of(path: str) -> str | None:
    """Name the room of a file, given from the root; None outside of all rooms."""
    for above in (path, *map(str, PurePosixPath(path).parents)):
        if above in ROOM_OF:
            # A new folder of mmr1/ is in no room until the table says so.
            return None if above == "mmr1" and path.count("/") > 1 else ROOM_OF[above]
    return None


def python_files(root: Path) -> Iterator[tuple[str, Path]]:
    """Go through the Python files of the folders that have rooms, by their path from the root."""
    for top in sorted({path.split("/")[0] for path in ROOM_OF}):
        for file in sorted((root / top).rglob("*.py")):
            yield file.relative_to(root).as_posix(), file


def counted(root: Path) -> dict[str, int]:
    """Count the lines of code of each room, and of ``mmr1`` as a whole.

    Raises:
        ValueError: If a file is in no room.
    """
    counts: Counter[str] = Counter(dict.fromkeys(ROOMS, 0))
    for path, file in python_files(root):
        room = room_of(path)
        if room is None:
            raise ValueError(
                f"{path} is in no room; add its folder to one in {Path(__file__).name}"
            )
        lines = code_lines(file.read_text())
        counts[room] += lines
        counts["mmr1"] += lines * path.startswith("mmr1/")
    return dict(counts)


def too_large(counts: dict[str, int]) -> list[str]:
    """Name the rooms that have more lines than they may have from now on, with both numbers."""
    return [
        f"{name}: {counts[name]:,} lines of code, {room.held:,} at most"
        for name, room in {**ROOMS, "mmr1": WHOLE}.items()
        if room.held is not None and counts[name] > room.held
    ]


def import_closure(root: Path, start: str = LOOP, *, lazy: bool = True) -> dict[str, int]:
    """Count the files, and their lines of any kind, that importing ``start`` reads of our packages.

    Args:
        root: The checkout.
        start: A module.
        lazy: Whether imports inside functions count, which run later.
    """
    modules = {
        path[:-3].replace("/", ".").removesuffix(".__init__"): file
        for path, file in python_files(root)
        if path.split("/")[0] in PACKAGES
    }
    seen: set[str] = set()
    waiting = {start} & modules.keys()
    while waiting:
        name = waiting.pop()
        seen.add(name)
        named = _imported(ast.parse(modules[name].read_text()), lazy) | {name}
        waiting |= {above for each in named for above in _prefixes(each) if above in modules}
        waiting -= seen
    return {"files": len(seen), "lines": sum(modules[m].read_text().count("\n") for m in seen)}


def _prefixes(name: str) -> list[str]:
    """``a``, ``a.b`` and ``a.b.c`` of ``a.b.c``: packages are imported before what is in them."""
    parts = name.split(".")
    return [".".join(parts[: count + 1]) for count in range(len(parts))]


def _imported(node: ast.AST, lazy: bool) -> set[str]:
    """The names behind ``import``, and of ``from`` those that may be modules."""
    if isinstance(node, ast.Import):
        return {alias.name for alias in node.names}
    if isinstance(node, ast.ImportFrom):  # relative imports are banned
        return {f"{node.module}.{alias.name}" for alias in node.names}
    below = ast.iter_child_nodes(node)
    if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
        below = iter(node.orelse)
    elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda) and not lazy:
        below = iter(())
    return {name for child in below for name in _imported(child, lazy)}


def table(root: Path) -> str:
    """Lay out each room's lines today, at the start, its limit and its direction."""
    counts = counted(root)
    lines = [f"{'room':24}{'today':>8}{'e1d911a1':>10}{'limit':>8}{'direction':>11}"]
    for name, room in {**ROOMS, "mmr1": WHOLE}.items():
        over = "  over" if counts[name] > room.limit else ""
        numbers = f"{counts[name]:8,}{room.start:10,}{room.limit:8,}{room.direction:11,}"
        lines.append(f"{name:24}{numbers}{over}")
    for lazy in (False, True):
        found = import_closure(root, lazy=lazy)
        how = "later ones included" if lazy else "at once"
        lines.append(f"{LOOP} imports {found['files']} files, {found['lines']:,} lines ({how})")
    return "\n".join(lines)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--root", type=Path, default=Path(__file__).parents[2])
    print(table(parser.parse_args().root))
