"""Is there a model where a configuration names one? Reads ``config.json`` and imports no torch."""

from __future__ import annotations

import json
from pathlib import Path

from mmr1.registry import suggest
from mmr1.vision.families.registry import FAMILIES


def check_model_path(path: str, key: str = "model.path") -> None:
    """Check a model that is on this machine; a name on the hub is checked when it is loaded.

    Raises:
        ValueError: There is no model in the directory, or no family for it.
    """
    check_directory_of_model(path, key)
    file = Path(path) / "config.json"
    if file.is_file():
        try:
            settings = json.loads(file.read_text(encoding="utf-8"))
        except ValueError as error:
            raise ValueError(f"{key} '{path}': its config.json is no JSON: {error}") from error
        model_type = settings.get("model_type") if isinstance(settings, dict) else None
        check_model_type(str(model_type), path, key)


def check_directory_of_model(path: str, key: str) -> None:
    """Check that a path on this machine has a ``config.json``.

    Raises:
        ValueError: It has none.
    """
    # A path that looks like one must exist: the hub's error for it would speak of repositories.
    looks_local = path.startswith((".", "/", "~")) or path.count("/") > 1
    if (looks_local or Path(path).exists()) and not (Path(path) / "config.json").is_file():
        raise ValueError(
            f"{key} '{path}' is not a model directory (no config.json there); "
            "make a small one with 'mmr1 model new' or name a Hugging Face model"
        )


def check_model_type(model_type: str, path: str, key: str) -> None:
    """Check that there is a family for models of this type.

    Raises:
        ValueError: There is none.
    """
    names = FAMILIES.names()
    if model_type not in names:
        raise ValueError(
            f"{key} '{path}' is a '{model_type}' model{suggest(model_type, names)}; "
            f"mmr1 trains models of type {', '.join(sorted(names))}, "
            "and those of families that a plugin adds (docs/models.md)"
        )
