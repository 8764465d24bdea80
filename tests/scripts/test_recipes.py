"""Every YAML is a configuration; every recipe is whole, and runs in small."""

from __future__ import annotations

import os
import re
import subprocess
import sys

import pytest

from mmr1.config.file import load_config
from tests.paths import REPOSITORY

RECIPES = REPOSITORY / "scripts/recipes"
NAMES = sorted(path.parent.name for path in RECIPES.glob("*/run.sh"))
YAMLS = sorted(RECIPES.rglob("*.yaml"))


def test_there_are_recipes():
    assert len(NAMES) >= 10


@pytest.mark.parametrize("path", YAMLS, ids=lambda path: str(path.relative_to(RECIPES)))
def test_every_yaml_is_a_configuration(path):
    config = load_config(path)
    if path.parent.name in NAMES:
        # Stages must not write into each other's folders.
        assert config.trainer.output_dir == f"runs/{path.parent.name}/{path.stem}"


@pytest.mark.parametrize("name", NAMES)
def test_a_recipe_is_whole(name):
    folder = RECIPES / name
    script, readme = (folder / "run.sh").read_text(), (folder / "README.md").read_text()
    assert os.access(folder / "run.sh", os.X_OK)
    for path in folder.glob("*.yaml"):
        assert f"`{path.name}`" in readme
        assert re.search(rf"\b{path.stem}\b", script), path
    for stage in re.findall(r"^stage \w+ (\w+)", script, re.M):
        assert (folder / f"{stage}.yaml").is_file(), stage
    for word in ("**Data**", "|---|"):
        assert word in readme


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_smoke(name, tmp_path):
    environment = {
        **os.environ,
        "PYTHON": sys.executable,
        "PYTHONPATH": str(REPOSITORY),
        "SMOKE_OUT": str(tmp_path),
        "OMP_NUM_THREADS": "1",
    }
    finished = subprocess.run(
        [RECIPES / name / "run.sh", "--smoke"],
        env=environment, capture_output=True, text=True, timeout=600, check=False,
    )  # fmt: skip
    assert finished.returncode == 0, finished.stderr
    assert list((tmp_path / name).glob("*/checkpoints/step_000002/config.json"))


def test_a_wrong_option_is_told():
    script = RECIPES / NAMES[0] / "run.sh"
    finished = subprocess.run([script, "--smok"], capture_output=True, text=True, check=False)
    assert finished.returncode == 2
    assert "usage:" in finished.stderr
