"""What the documentation shows is what the code does."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
import typer
import yaml
from PIL import Image

from datasets_prep.data_cli import app as data_app
from mmr1.cli import app
from mmr1.config import Config
from mmr1.config.commands import COMMANDS
from mmr1.config.file import load_config
from mmr1.data.record import read_records
from tests.paths import REPOSITORY

DOCS = REPOSITORY / "docs"
PAGES = sorted(DOCS.glob("*.md"))
LINKING = [
    *PAGES,
    *REPOSITORY.glob("*.md"),
    *REPOSITORY.glob("scripts/recipes/*/README.md"),
    *REPOSITORY.glob("scripts/claims/*/README.md"),
]
APPS = {"mmr1": app, "mmr1-data": data_app}


def blocks(path: Path, language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", path.read_text(), re.S)


def anchors(page: Path) -> set[str]:
    """The ids that Markdown renderers give the headings."""
    headings = re.findall(r"^#+ (.+)$", page.read_text(), re.M)
    return {re.sub(r"[^\w\s-]", "", text.lower()).replace(" ", "-") for text in headings}


def commands() -> list[tuple[str, str]]:
    """Every line of code of the pages that calls one of our commands, with the page's name."""
    calls = []
    for path in [*PAGES, REPOSITORY / "README.md"]:
        fences = [block.replace("\\\n", " ") for block in blocks(path, "bash")]
        indented = re.findall(r"^ {4}(.+)$", path.read_text().replace("\\\n", " "), re.M)
        fenced = [line for block in fences for line in block.splitlines()]
        calls += [
            (path.name, line) for line in indented + fenced if re.match(r"mmr1(-data)? ", line)
        ]
    return calls


def source() -> str:
    """All of our code, its string literals joined where they are broken over lines."""
    files = [
        p
        for folder in ("mmr1", "mmr1_contrib", "datasets_prep")
        for p in (REPOSITORY / folder).rglob("*.py")
    ]
    return re.sub(r'"\s+f?"', "", "\n".join(path.read_text() for path in files))


@pytest.mark.parametrize(("page", "line"), commands(), ids=lambda value: value)
def test_every_command_is_one(page, line):
    """Its options are known; what it overrides makes a configuration."""
    program, *words = shlex.split(line, comments=True)
    command = typer.main.get_command(APPS[program])
    while isinstance(command, typer.core.TyperGroup):
        name, command, words = command.resolve_command(command.make_context("x", [*words]), words)
    context = command.make_context(name, words)
    if overrides := context.params.get("overrides"):
        command = name if name in COMMANDS.names() else "train"
        load_config(None, ["model.path=some-model", *overrides], command)


@pytest.mark.parametrize("path", LINKING, ids=lambda path: str(path.relative_to(REPOSITORY)))
def test_links_lead_somewhere(path):
    for target, anchor in re.findall(r"\]\(([^)#\s]*)(?:#([^)]*))?\)", path.read_text()):
        if not target.startswith("http"):
            page = path.parent / target if target else path
            assert page.exists(), target
            assert not anchor or anchor in anchors(page), f"{target}#{anchor}"


def tables(path: Path) -> list[list[str]]:
    """The tables of a page: consecutive lines that begin with a bar, outside of code."""
    text = re.sub(r"^```.*?^```", "", path.read_text(), flags=re.S | re.M)
    return [part.splitlines() for part in re.findall(r"(?:^\|.*\n?)+", text, re.M)]


def cells(line: str) -> int:
    """Columns of a row as renderers count them: a bar that is escaped does not separate."""
    assert line.rstrip().endswith("|"), line
    return len(re.findall(r"(?<!\\)\|", line)) - 1


@pytest.mark.parametrize("path", LINKING, ids=lambda path: str(path.relative_to(REPOSITORY)))
def test_the_rows_of_a_table_have_equal_columns(path):
    for head, rule, *rows in tables(path):
        assert re.fullmatch(r"\|(?::?-+:?\|)+", rule.replace(" ", "")), (head, rule)
        for row in (rule, *rows):
            assert cells(row) == cells(head), row


def test_the_messages_of_the_fault_table_are_ours():
    code = source()
    page = (DOCS / "troubleshooting.md").read_text()
    messages = re.findall(r"^\| `([^`]+)`(?: \||,)", page, re.M)
    assert len(messages) >= 8
    for message in messages:
        for piece in re.split(r"\.\.\.|'[xy]'|\bN\b", message):
            assert piece.strip(" ()?") in code, message


@pytest.mark.parametrize(
    "script",
    [
        *("algorithm_table", "architecture_picture", "cli_reference", "config_reference"),
        *("exact_table", "reward_reference"),
    ],
)
def test_a_generated_page_is_what_the_code_says(script):
    check = [sys.executable, REPOSITORY / f"scripts/dev/{script}.py", "--check"]
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
    finished = subprocess.run(check, env=environment, check=False)
    assert finished.returncode == 0, f"run: python scripts/dev/{script}.py"
    assert "`save_total_limit`" in (DOCS / "configuration.md").read_text()


GENERATED = {"commands", "configuration", "claims", "exact", "migration", "reward_functions"}


# Pages of evidence, and those that say how a contributor tests.
EVIDENCE = {"validation", "extend"}


@pytest.mark.parametrize(
    "path", [path for path in PAGES if path.stem not in EVIDENCE], ids=lambda path: path.stem
)
def test_a_page_names_its_tests_in_the_section_validation(path):
    before = path.read_text().partition("\n## Validation\n")[0]
    assert re.findall(r"`(?:tests/[\w/]*)?test_\w+\.py", before) == []
    assert "not measured" not in before


@pytest.mark.parametrize("path", LINKING, ids=lambda path: str(path.relative_to(REPOSITORY)))
def test_the_tests_and_scripts_that_a_page_names_are_there(path):
    known = {file.name for file in (REPOSITORY / "tests").rglob("test_*.py")}
    named = set(
        re.findall(r"`((?:tests|scripts|mmr1)/[\w/.]+?\.(?:py|sh|yaml|sbatch))", path.read_text())
    )
    assert [name for name in sorted(named) if not (REPOSITORY / name).is_file()] == []
    assert set(re.findall(r"`(test_\w+\.py)", path.read_text())) <= known


def test_every_page_is_in_the_navigation():
    text = (REPOSITORY / "mkdocs.yml").read_text()
    assert set(re.findall(r": (\w+\.md)$", text, re.M)) == {path.name for path in PAGES}


def test_every_recipe_is_listed():
    listed = re.findall(r"^\| `(\w+)` \|", (DOCS / "reproduce.md").read_text(), re.M)
    assert sorted(listed) == sorted(
        p.parent.name for p in REPOSITORY.glob("scripts/recipes/*/run.sh")
    )


def test_the_tutorial_makes_records_and_a_configuration(tmp_path):
    page = DOCS / "own_images.md"
    (table,), (config,) = (blocks(page, kind) for kind in ("text", "yaml"))
    convert = shlex.split(blocks(page, "bash")[0])
    (tmp_path / "answers.csv").write_text(table)
    (tmp_path / "images").mkdir()
    for name in re.findall(r"^(images/\S+?),", table, re.M):
        Image.new("RGB", (30, 30)).save(tmp_path / name)
    assert convert[0] == "mmr1-data"
    command = [sys.executable, "-m", "datasets_prep", *convert[1:], "--workers", "1"]
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
    subprocess.run(command, cwd=tmp_path, env=environment, check=True, stdout=subprocess.DEVNULL)
    samples = read_records(tmp_path / "own/records.jsonl")
    assert [(s.question, s.answer, s.task, len(s.media)) for s in samples] == [
        ("How many cubes are there?", "4", "count", 1),
        ("How many spheres are there?", "2", "count", 1),
    ]
    assert Config.model_validate(yaml.safe_load(config)).rewards["auto"].weight == 1.0


def test_the_walk_of_a_script_is_what_migrate_says(tmp_path, monkeypatch, mmr1):
    page = DOCS / "migration.md"
    (script,), (said,) = (blocks(page, kind) for kind in ("sh", "text"))
    monkeypatch.chdir(tmp_path)
    Path("run_geo3k.sh").write_text(script)
    convert, check, dry_run = (
        shlex.split(line)[1:] for line in "".join(blocks(page, "bash")).splitlines()[:3]
    )
    code, out, err = mmr1(*convert)
    assert code == 0, err
    assert (out + err).split() == said.split()
    code, out, _ = mmr1(*check)
    assert code == 0
    assert re.search(r"kl_loss_coef +0\.01 +kl\.coef +0\.01", out)
    code, out, err = mmr1(*dry_run)
    assert code == 0, err
    made = yaml.safe_load(out)
    assert made["algorithm"]["loss"]["clip_ratio_dual"] == 3.0
    assert set(made["rewards"]) == {"math", "format"}


def test_the_site_builds(tmp_path):
    build = pytest.importorskip("mkdocs.commands.build", reason="mkdocs is not installed")
    from mkdocs.config import load_config as load_site

    site = load_site(str(REPOSITORY / "mkdocs.yml"), site_dir=str(tmp_path), strict=True)
    build.build(site)
    assert (tmp_path / "concepts/index.html").is_file()
