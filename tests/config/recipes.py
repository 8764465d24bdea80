"""The configurations that are shipped, each with its command."""

from __future__ import annotations

import os
from pathlib import Path

import yaml

from mmr1.config.commands import command_of as command_of_sections
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
    """By the name of the file, or by its sections."""
    named = BY_NAME.get(file.stem.removeprefix("exact_"))
    return named or command_of_sections(yaml.safe_load(file.read_text()))
