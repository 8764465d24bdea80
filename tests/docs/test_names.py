"""Every file, configuration key and metric that the documentation names exists."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from mmr1.config import Config
from mmr1.section import Section, shapes
from tests.paths import REPOSITORY

FOLDERS = ("mmr1", "mmr1_contrib", "datasets_prep", "scripts", "tests", "docs")
PAGES = sorted(
    [
        *REPOSITORY.glob("*.md"),
        *REPOSITORY.glob("docs/*.md"),
        *REPOSITORY.glob("scripts/recipes/*/README.md"),
        *REPOSITORY.glob("scripts/claims/*/README.md"),
    ]
)
FILES = [p for folder in FOLDERS for p in (REPOSITORY / folder).rglob("*") if p.is_file()]
FILES += [p for p in REPOSITORY.iterdir() if p.is_file()]
PATHS = {f"/{path.relative_to(REPOSITORY)}" for path in FILES}
# Code and settings; data and run files (.jsonl, .png, ...) are the reader's own.
SOURCE_FILE = re.compile(r"[\w./-]+\.(?:py|sh|sbatch|yaml|yml|toml|js|md)")
IN_REPOSITORY = re.compile(rf"(?:\./)?(?:{'|'.join(FOLDERS)})/[\w./-]*")
KEY = re.compile(r"([a-z_]+(?:\.\w+)+)(?:=.*)?")
OWN = {"run.yaml", "run_geo3k.sh", "config.yaml"}  # what the reader, or a run, writes
DATA_FILE = re.compile(r".*\.(?:png|json|jsonl|html|parquet)")
METRIC = re.compile(
    r"(?:reward|rollout|completions|dynamic_sampling|replay|critic|tokens|loss|views|policy|dpo|rm)"
    r"/[a-z_/]+"
)


def name_of(page: Path) -> str:
    return str(page.relative_to(REPOSITORY))


def quoted(page: Path) -> Iterator[str]:
    """What stands between single backticks, code blocks left out."""
    text = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.M | re.S)
    yield from re.findall(r"`([^`\n]+)`", text)


def file_exists(name: str, page: Path) -> bool:
    """From the repository's root, from the page's folder, or as the end of one path."""
    name = name.removeprefix("./")
    if any((folder / name).exists() for folder in (REPOSITORY, page.parent)):
        return True
    return any(path.endswith(f"/{name}") for path in PATHS)


def key_exists(key: str) -> bool:
    """A key of the configuration, of some type; any name will do in a mapping."""
    return _exists((Config,), key.split("."))


def _exists(sections: Sequence[type[Section]], names: Sequence[str]) -> bool:
    name, *rest = names
    holders = [section for section in sections if name in section.model_fields]
    if not rest:
        return bool(holders)
    for holder in holders:
        shape = shapes(holder).get(name)
        if shape is None:
            if "dict[" in str(holder.model_fields[name].annotation):
                return True
        elif not (below := rest[1:] if shape.is_mapping else rest) or _exists(shape.classes, below):
            return True
    return False


def is_function(name: str) -> bool:
    """``module.function``, such as ``dpo.dpo_step``."""
    module, _, function = name.rpartition(".")
    sources = [path for path in FILES if path.name == f"{module}.py"]
    return any(f"def {function}(" in path.read_text() for path in sources)


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_files_exist(page):
    names = [n for n in quoted(page) if SOURCE_FILE.fullmatch(n) or IN_REPOSITORY.fullmatch(n)]
    missing = [n for n in names if n not in OWN and not file_exists(n, page)]
    assert not missing


@pytest.mark.parametrize(
    "page",
    [page for page in PAGES if page.name not in ("migration.md", "CHANGELOG.md")],
    ids=name_of,
)
def test_keys_exist(page):
    """``tests/contrib/migrate`` checks our keys in ``migration.md``, whose tables name others too.

    A changelog names the keys of its time.
    """
    texts = [t for t in quoted(page) if not (SOURCE_FILE.fullmatch(t) or DATA_FILE.fullmatch(t))]
    keys = [match[1] for text in texts if (match := KEY.fullmatch(text))]
    ours = [key for key in keys if key.split(".")[0] in Config.model_fields]
    assert not [key for key in ours if not key_exists(key) and not is_function(key)]


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_metrics_exist(page):
    metrics = {text for text in quoted(page) if METRIC.fullmatch(text)}
    code = "\n".join(
        path.read_text()
        for path in FILES
        if path.suffix == ".py" and {"mmr1", "mmr1_contrib"} & {*path.parts}
    )
    assert not [name for name in metrics if f'"{name}"' not in code and f"``{name}``" not in code]


def test_every_metric_is_described():
    """A metric that the core logs under a fixed name has a row on its page."""
    described = set(quoted(REPOSITORY / "docs/metrics.md"))
    code = [path.read_text() for path in FILES if path.suffix == ".py" and "mmr1" in path.parts]
    logged = {name for text in code for name in re.findall(rf'"({METRIC.pattern})"', text)}
    own = {name for name in logged if not name.startswith(("dpo/", "rm/"))}
    assert len(own) > 30
    assert sorted(own - described) == []


def test_the_patterns_match():
    """None of these tests passes because it looks at nothing."""
    texts = [text for page in PAGES for text in quoted(page)]
    assert sum(SOURCE_FILE.fullmatch(text) is not None for text in texts) > 50
    assert sum(KEY.fullmatch(text) is not None for text in texts) > 150
    assert sum(METRIC.fullmatch(text) is not None for text in texts) > 10
    assert not file_exists("trainer/missing.py", REPOSITORY / "README.md")
    assert not key_exists("rollout.ahead")
    assert not key_exists("rewards.format.wieght")
    assert key_exists("rewards.NAME.weight")
    assert key_exists("eval.models.before")
