"""Without ``mmr1_contrib`` the core runs: ``--help``, fine-tuning, RL, evaluation, report.

The metadata keep their entry points, as where somebody deletes the folder of an installed wheel.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from mmr1.config.commands import COMMANDS
from tests.paths import REPOSITORY

# An editable installation has the repository on the path, and so what was left out.
WITHOUT_REPOSITORY = """
import sys
from pathlib import Path
sys.path[:] = [path for path in sys.path if not (Path(path or ".") / "mmr1_contrib").is_dir()]
"""
RUN_ALL = """
import json, sys
from mmr1.cli import main

for arguments in json.loads(sys.argv[1]):
    sys.argv = ["mmr1", *arguments]
    try:
        main()
    except SystemExit as ended:
        assert not ended.code, (arguments, ended.code)
found = [name for name in sys.modules if name.startswith("mmr1_contrib")]
assert not found, found
"""


@pytest.fixture(scope="module")
def core(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the packages but ``mmr1_contrib``, and with the metadata of all of them."""
    folder = tmp_path_factory.mktemp("core")
    unneeded = shutil.ignore_patterns("__pycache__")
    for package in ("mmr1", "datasets_prep"):
        shutil.copytree(REPOSITORY / package, folder / package, ignore=unneeded)
    (folder / "sitecustomize.py").write_text(WITHOUT_REPOSITORY)
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]
    metadata = folder / f"mmr1-{project['version']}.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text(
        f"Metadata-Version: 2.1\nName: mmr1\nVersion: {project['version']}\n"
    )
    groups = project["entry-points"].items()
    assert "mmr1_contrib" in str(groups)
    (metadata / "entry_points.txt").write_text(
        "".join(
            f"[{group}]\n" + "".join(f"{name} = {target}\n" for name, target in points.items())
            for group, points in groups
        )
    )
    return folder


def python(core: Path, folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(core)}
    return subprocess.run(
        [sys.executable, *arguments], cwd=folder, env=environment, capture_output=True, text=True
    )


def test_the_package_is_gone(core, tmp_path):
    finished = python(core, tmp_path, "-c", "import mmr1, datasets_prep; print(mmr1.__file__)")
    assert finished.stdout.startswith(str(core)), finished.stderr
    finished = python(core, tmp_path, "-c", "import mmr1_contrib")
    assert "No module named 'mmr1_contrib'" in finished.stderr


@pytest.mark.parametrize("program", ["mmr1", "datasets_prep"])
def test_help_lists_the_commands_of_the_core(program, core, tmp_path):
    finished = python(core, tmp_path, "-m", program, "--help")
    assert finished.returncode == 0, finished.stderr
    listed = {line.strip("│ ").partition(" ")[0] for line in finished.stdout.splitlines()}
    wings = COMMANDS.names().keys() - COMMANDS.builtin.keys()
    assert {*COMMANDS.builtin} <= listed if program == "mmr1" else "convert" in listed
    assert not listed & {*wings, "rankings"}


def test_a_command_of_the_package_is_none(core, tmp_path):
    finished = python(core, tmp_path, "-m", "mmr1", "dpo", "run.yaml")
    assert finished.returncode == 2
    assert "No such command 'dpo'" in finished.stderr


def test_fine_tuning_rl_evaluation_and_report_run(core, tiny_model, digits, tmp_path):
    records = (f"data.media_root={digits}", "data.train_batch_size=2")
    short = ("model.dtype=float32", "trainer.max_steps=2", "trainer.threads=1")
    sampling = (
        *("rollout.engine=hf", "rollout.n=2", "rollout.max_prompt_length=128"),
        *("rollout.max_response_length=8", "eval.limit=2"),
    )
    (tmp_path / "run.yaml").write_text("{}")
    sft, rl = tmp_path / "sft", tmp_path / "rl"
    fine_tuning = [
        *("sft", "run.yaml", *short, *records, f"model.path={tiny_model}"),
        *(f"data.train={digits / 'sft.jsonl'}", f"trainer.output_dir={sft}"),
    ]
    training = [
        *("train", "run.yaml", *short, *records, *sampling),
        f"model.path={sft / 'checkpoints/step_000002'}",
        *(f"data.train={digits / 'rl.jsonl'}", f"trainer.output_dir={rl}"),
    ]
    evaluation = [
        *("eval", f"{rl / 'config.yaml'}", f"model.path={rl / 'checkpoints/step_000002'}"),
        *(f"eval.data={digits / 'eval.jsonl'}", f"eval.output_dir={tmp_path / 'eval'}"),
    ]
    calls = [fine_tuning, training, evaluation, ["report", f"{rl}"]]
    finished = python(core, tmp_path, "-c", RUN_ALL, json.dumps(calls))
    assert finished.returncode == 0, finished.stderr
    assert (tmp_path / "eval/result.json").is_file()
    assert (rl / "report.html").is_file()


@pytest.mark.parametrize(
    ("program", "stale"),
    [
        ("mmr1", "[mmr1.cli]\ngone = mmr1.doctor:gone"),
        ("mmr1", "[mmr1.cli]\ngone = mmr1.gone:gone"),
        ("mmr1", "[mmr1.cli]\ngone gone = mmr1.doctor:doctor"),
        ("mmr1", "[mmr1.sections]\ngone = mmr1.gone:Gone"),
        ("datasets_prep", "[mmr1.data_cli]\ngone = mmr1.gone:gone"),
    ],
)
def test_entry_points_older_than_the_code_are_one_line(program, stale, core, tmp_path):
    metadata = tmp_path / "stale-1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: stale\nVersion: 1.0\n")
    (metadata / "entry_points.txt").write_text(stale)
    finished = python(core, tmp_path, "-m", program, "--help")
    assert finished.returncode == 2
    (line,) = finished.stderr.splitlines()
    assert "install it again" in line
