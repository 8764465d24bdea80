"""The configurations that are shipped, each with its command."""

from __future__ import annotations

import os
from pathlib import Path

import yaml

from tests.paths import REPOSITORY

os.environ.setdefault("ORIGINAL", "a checkout")  # of which exact recipes read prompt and rewards

SFT = ("sft", "start", "tower", "align", "control")
BY_NAME: dict[str, str] = {"rm": "rm", "first": "rm", **dict.fromkeys(SFT, "sft")}
"""The command of a file whose sections do not tell it."""


def shipped() -> list[tuple[Path, str]]:
    """Every YAML of the recipes and claims."""
    folders = (REPOSITORY / "scripts/recipes", REPOSITORY / "scripts/claims")
    files = sorted(file for folder in folders for file in folder.rglob("*.yaml"))
    files = [file for file in files if not file.name.startswith(("claim", "compare"))]
    return [(file, command_of(file)) for file in files]


def command_of(file: Path) -> str:
    """By the sections of the file; else by its name."""
    tree = yaml.safe_load(file.read_text())
    named: tuple[str, ...] = ("iterate", "dpo", "rm")
    for command in named:
        if command in tree:
            return command
    return "train" if "algorithm" in tree else BY_NAME[file.stem.removeprefix("exact_")]
