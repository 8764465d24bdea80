"""The configuration in the folder of a run: it means that folder, wherever the folder lies now."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

CONFIG = "config.yaml"
INPUTS = "inputs.json"
"""Digests of what a run read, beside its configuration: so its folder is known as one."""
RESUME = "--resume (resume=True in Python)"
"""How a run is continued, for messages."""


def in_its_folder(path: Path, values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values of a configuration file, with the folder of its run where it lies now.

    A run that was moved, copied, or is named from another working directory continues in the folder
    that is named, and reads what it wrote there. Other files are left as they are.

    Args:
        path: The file that the values were read from.
    """
    folder = path.parent
    if path.name != CONFIG or not (folder / INPUTS).is_file():
        return dict(values)
    trainer = values.get("trainer")
    if not isinstance(trainer, Mapping) or not isinstance(trainer.get("output_dir"), str):
        return dict(values)
    before = Path(trainer["output_dir"])
    if before.absolute() == folder.absolute():
        return dict(values)
    moved: dict[str, Any] = _moved(values, before, folder)
    return {**moved, "trainer": {**moved["trainer"], "output_dir": str(folder)}}


def _moved(tree: Any, before: Path, now: Path) -> Any:
    if isinstance(tree, Mapping):
        return {_moved(key, before, now): _moved(value, before, now) for key, value in tree.items()}
    if isinstance(tree, list):
        return [_moved(value, before, now) for value in tree]
    if isinstance(tree, str) and tree.startswith(f"{before}/"):
        return str(now / Path(tree).relative_to(before))
    return tree
