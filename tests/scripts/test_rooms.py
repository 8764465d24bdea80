"""``scripts/dev/rooms.py``: lines that were counted by hand, rooms, and what a module imports."""

from __future__ import annotations

from pathlib import Path

import pytest

from scripts.dev.rooms import (
    CLOSURE,
    ROOMS,
    code_lines,
    counted,
    import_closure,
    room_of,
    table,
    too_large,
)
from tests.paths import REPOSITORY

COUNTED = '''\
"""A docstring
of two lines."""

import os  # 1

# a comment


@property  # 2
def function(
    given: int,  # 4, with the line above

    other: str = """of

    three lines""",  # 7
) -> int:  # 8
    """One line."""
    "not a docstring"  # 9

    return given + \\
        len(other)  # 11


class Named:  # 12
    r"""Raw."""

    text = "#"; more = """
    """  # 14
'''


def test_lines_are_those_counted_by_hand():
    assert code_lines(COUNTED) == 14
    assert code_lines('"""Only a docstring."""\n\n# and a comment\n') == 0
    assert code_lines("") == 0


def write(root: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def test_the_most_specific_path_has_a_file(tmp_path):
    write(
        tmp_path,
        {
            "mmr1/cli.py": "a = 1\n",
            "mmr1/trainer/loop.py": "b = 1\nc = 2\n",
            "mmr1/trainer/forward/scores.py": "d = 1\n",
            "mmr1/algorithms/kl.py": '"""None."""\n',
            "tests/trainer/test_loop.py": "e = 1\n",
        },
    )
    counts = counted(tmp_path)
    rooms = {"root": 1, "trainer": 2, "forward": 1, "tests": 1, "mmr1": 4}
    assert counts == {**dict.fromkeys(ROOMS, 0), **rooms}


def test_a_new_folder_is_in_no_room(tmp_path):
    assert room_of("mmr1/new.py") == "root"
    assert room_of("mmr1/new/file.py") is None
    assert room_of("docs/file.py") is None
    write(tmp_path, {"mmr1/new/file.py": ""})
    with pytest.raises(ValueError, match=r"mmr1/new/file\.py is in no room"):
        counted(tmp_path)


def test_every_file_of_the_tree_is_in_a_room():
    counts = counted(REPOSITORY)
    others = ("mmr1_contrib", "datasets_prep", "scripts", "tests")
    assert sum(counts[name] for name in ROOMS if name not in others) == counts["mmr1"]
    assert all(counts[name] for name in others)


def test_a_room_keeps_what_it_has_reached():
    counts = dict.fromkeys((*ROOMS, "mmr1"), 0)
    held = ROOMS["algorithms"].held
    over = too_large({**counts, "algorithms": held + 1})
    assert too_large({**counts, "trainer": 10**6}) == []  # has not reached its limit yet
    assert over == [f"algorithms: {held + 1:,} lines of code, {held:,} at most"]
    print(table(REPOSITORY))
    assert not too_large(counted(REPOSITORY))


def test_the_loop_imports_no_more_than_it_needs():
    found = import_closure(REPOSITORY, lazy=False)
    assert all(found[what] <= CLOSURE[what] for what in CLOSURE)


def test_imports_are_followed(tmp_path):
    write(
        tmp_path,
        {
            "mmr1/__init__.py": "",
            "mmr1/loop.py": (
                "import mmr1.package.module as m\n"
                "from mmr1 import name, sibling\n"
                "if TYPE_CHECKING:\n    import mmr1.typed\n"
                "def f():\n    from mmr1.later import g\n"
            ),
            "mmr1/package/__init__.py": "# one\n# two\n",
            "mmr1/package/module.py": "import numpy\n",
            "mmr1/sibling.py": "import mmr1.loop\n",
            "mmr1/later.py": "",
            "mmr1/typed.py": "",
            "mmr1/unread.py": "",
        },
    )
    # loop 6 lines, package 2, module 1, sibling 1, and mmr1/__init__ without one
    assert import_closure(tmp_path, "mmr1.loop", lazy=False) == {"files": 5, "lines": 10}
    assert import_closure(tmp_path, "mmr1.loop") == {"files": 6, "lines": 10}
