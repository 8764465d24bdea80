"""``docs/architecture.md``: names exist, and the picture is that of the code."""

from __future__ import annotations

import importlib
import re
from functools import cache, reduce

import grimp
import pytest

from mmr1.registry import import_file
from tests.paths import REPOSITORY

PAGE = (REPOSITORY / "docs/architecture.md").read_text()
NAMES = sorted(set(re.findall(r"`((?:mmr1|datasets_prep)[\w.]*:[\w.]+)`", PAGE)))
PICTURE = import_file(REPOSITORY / "scripts/dev/architecture_picture.py")
ARROWS = [(upper, lower) for upper, below in PICTURE.ARROWS.items() for lower in below]


@cache
def import_graph() -> grimp.ImportGraph:
    return grimp.build_graph("mmr1", "mmr1_contrib", "datasets_prep")


def module(room: str) -> str:
    return room if room.startswith(("mmr1", "datasets_prep")) else f"mmr1.{room}"


@pytest.mark.parametrize("name", NAMES)
def test_a_name_exists(name):
    path, attributes = name.split(":")
    assert reduce(getattr, attributes.split("."), importlib.import_module(path)) is not None


def test_all_three_ways_are_read():
    ways = re.split(r"^#+ The way of ", PAGE, flags=re.M)[1:]
    assert [way.split()[1] for way in ways] == ["sample", "weight", "verdict"]
    assert all(len(re.findall(r"`mmr1[\w.]*:", way)) >= 8 for way in ways)


@pytest.mark.parametrize(("upper", "lower"), ARROWS)
def test_an_arrow_is_an_import(upper, lower):
    graph = import_graph()
    sources = {module(upper), *graph.find_descendants(module(upper))}
    imported = {
        name for source in sources for name in graph.find_modules_directly_imported_by(source)
    }
    target = module(lower)
    assert any(name == target or name.startswith(f"{target}.") for name in imported)


def test_the_picture_has_every_package():
    shown = {module(room) for arrow in ARROWS for room in arrow}
    packages = {
        f"mmr1.{path.parent.relative_to(REPOSITORY / 'mmr1').as_posix().replace('/', '.')}"
        for folder in ("mmr1", "mmr1/trainer")
        for path in (REPOSITORY / folder).glob("*/__init__.py")
    }
    assert packages - {"mmr1.trainer"} <= shown
