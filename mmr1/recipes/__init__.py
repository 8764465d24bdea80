"""``mmr1 recipe``: the recipes that come with mmr1.

Each is a folder: README.md, the configurations, and ``run.sh`` (the quickstart: ``quickstart.py``).
One that is a configuration alone is what ``mmr1 train`` is given.
In a checkout they are in ``scripts/recipes``. An installed package carries them in ``files``, and a
recipe that is run is first copied into ``scripts/recipes`` of the current folder, where it can be
changed: its files name each other from there.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Annotated

import typer

app = typer.Typer(no_args_is_help=True, help="Recipes: list, show and run them.")
INSTALLED = Path(__file__).parent / "files"
CHECKOUT = Path(__file__).parents[2] / "scripts/recipes"
HERE = Path("scripts/recipes")
ABOUT = {
    "quickstart": "Quickstart: a small model learns to read digits on a CPU",
    "qwen2_5_vl_3b": "GRPO of Qwen2.5-VL-3B on records of your own",
    "qwen2_5_vl_32b": "GRPO of Qwen2.5-VL-32B on records of your own, with engines of four GPUs",
}
"""What recipes without a README are about."""


def home() -> Path:
    """The folder of the recipes: of the package, or of the checkout."""
    return INSTALLED if INSTALLED.is_dir() else CHECKOUT


def recipes() -> dict[str, Path]:
    """The folders of all recipes, by name."""
    return {path.name: path for path in sorted(home().iterdir()) if any(path.glob("*.yaml"))}


def recipe(name: str) -> Path:
    """The folder of a recipe. Raises ValueError if there is none of this name."""
    from mmr1.registry import suggest

    known = recipes()
    if name not in known:
        hint = suggest(name, known)
        raise ValueError(f"there is no recipe '{name}'{hint}; mmr1 recipe list has them all")
    return known[name]


@app.command("list")
def list_recipes() -> None:
    """Print the names of all recipes, and what they are about."""
    width = max(map(len, recipes()))
    for name, folder in recipes().items():
        typer.echo(f"{name:<{width}}  {_title(folder)}")


def _title(folder: Path) -> str:
    readme = folder / "README.md"
    if not readme.exists():
        return ABOUT[folder.name]
    return readme.read_text(encoding="utf-8").splitlines()[0].removeprefix("# ")


@app.command("show")
def show(name: Annotated[str, typer.Argument(help="As mmr1 recipe list has it")]) -> None:
    """Print what a recipe is about, and its files."""
    folder = recipe(name)
    if (folder / "README.md").exists():
        typer.echo((folder / "README.md").read_text(encoding="utf-8"))
    for file in sorted(folder.glob("*")):
        if file.suffix in (".yaml", ".sh", ".py"):
            typer.echo(f"{'-' * 8} {HERE / name / file.name}\n{file.read_text(encoding='utf-8')}")


@app.command("run", context_settings={"ignore_unknown_options": True})
def run(
    name: Annotated[str, typer.Argument(help="As mmr1 recipe list has it")],
    arguments: Annotated[
        list[str] | None,
        typer.Argument(
            help="key=value for all stages; --smoke: a test on the CPU; --exact: the original"
        ),
    ] = None,
) -> None:
    """Run a recipe in the current folder: the data in data/, the output in runs/.

    A recipe that was interrupted continues, stage by stage.
    """
    command = _command(recipe(name))
    for line in copy_recipe(name):
        typer.echo(line)
    environment = os.environ | {"PYTHON": sys.executable}
    ended = subprocess.run([*command, *(arguments or ())], env=environment, check=False)
    raise typer.Exit(ended.returncode)


def _command(folder: Path) -> list[str]:
    """The command that runs a recipe, from the folder that has ``scripts/recipes``."""
    at = HERE / folder.name
    if (folder / "run.sh").exists():
        return ["bash", str(at / "run.sh")]
    if (folder / f"{folder.name}.py").exists():
        return [sys.executable, str(at / f"{folder.name}.py")]
    file = str(at / next(folder.glob("*.yaml")).name)
    return [sys.executable, "-m", "mmr1", "train", "--resume", file]


def copy_recipe(name: str) -> list[str]:
    """Copy a recipe, and what all share, into the current folder where they are missing.

    Returns what was written, as lines for the terminal; nothing in a checkout. Files that are there
    stay as they are.
    """
    if HERE.resolve() == home().resolve():
        return []
    shared = [file.name for file in home().iterdir() if file.suffix in (".sh", ".py")]
    wanted = [*shared, *(f"{name}/{f.name}" for f in recipe(name).iterdir() if f.is_file())]
    wanted = [file for file in wanted if file != "__init__.py"]
    missing = [file for file in wanted if not (HERE / file).exists()]
    for file in missing:
        (HERE / file).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(home() / file, HERE / file)
    return [f"written: {HERE}/{file}" for file in missing]
