"""Runs of ``mmr1`` on the quickstart's digits, and what their policies reach on held-out scans."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

RECIPES = Path("scripts/recipes/quickstart")
RECIPE = RECIPES / "rl.yaml"
DATA = Path("runs/quickstart/data")
START = Path("runs/quickstart/sft/checkpoints/step_000120")
NOT_SAMPLING = ("algorithm=null", "rollout=null", "rewards=null")
"""For ``RECIPE`` and a command that does not sample: these sections are not read by it."""


def newest(folder: Path) -> Path:
    """The last checkpoint of a run."""
    return max((folder / "checkpoints").glob("step_*"))


def train(run: Path, model: Path, seed: int, recipe: str, steps: int, *settings: str) -> None:
    """One stage by a recipe of the quickstart, ``sft`` or ``rl``, unless it exists."""
    if (run / "done").is_file():
        return
    command = "sft" if recipe == "sft" else "train"
    call(
        "mmr1.cli",
        *(command, RECIPES / f"{recipe}.yaml", f"model.path={model}", f"seed={seed}"),
        *(f"trainer.output_dir={run}", f"trainer.max_steps={steps}", *settings),
    )
    (run / "done").touch()


def accuracies(model: Path, output: Path, *settings: str) -> list[str]:
    """Greedy and sampled accuracy on the held-out scans, evaluated unless ``output`` has them."""
    result = output / "result.json"
    if not result.is_file():
        where = (f"model.path={model}", f"eval.output_dir={output}", "rollout.engine=hf")
        call("mmr1.cli", "eval", RECIPE, *where, *settings)
    modes = json.loads(result.read_text())
    return [f"{modes[mode]['accuracy']:.3f}" for mode in ("greedy", "sampled")]


def call(module: str, *arguments: object) -> None:
    """Run a module as a program; ends this one where it fails."""
    finished = subprocess.run([sys.executable, "-m", module, *map(str, arguments)], check=False)
    if finished.returncode:
        sys.exit(finished.returncode)
