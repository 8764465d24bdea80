"""Check that a model is where a configuration names one. Imports no torch."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mmr1.registry import suggest
from mmr1.vision.families.registry import FAMILIES, GENERAL, GENERAL_TEXT


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
            raise ValueError(f"{key} '{path}': its config.json is not JSON: {error}") from error
        family_name(settings if isinstance(settings, dict) else {}, path, key)


def check_directory_of_model(path: str, key: str) -> None:
    """Check that a path on this machine has a ``config.json``. Raises ValueError if it has none."""
    # A path that looks like one must exist: the hub's error for it would speak of repositories.
    looks_local = path.startswith((".", "/", "~")) or path.count("/") > 1
    if (looks_local or Path(path).exists()) and not (Path(path) / "config.json").is_file():
        raise ValueError(
            f"{key} '{path}' is not a model directory (no config.json there); "
            "make a small one with 'mmr1 model new' or name a Hugging Face model"
        )


def from_pretrained(auto_class: Any, path: str, trust_remote_code: bool, **options: Any) -> Any:
    """Call ``auto_class.from_pretrained`` so that it does not ask the user anything.

    Left to itself, transformers asks on the terminal whether to run code of the repository.

    Args:
        trust_remote_code: ``model.trust_remote_code``: it is run.

    Raises:
        ValueError: The files cannot be used without such code, or without a package.
    """
    try:
        return auto_class.from_pretrained(path, trust_remote_code=trust_remote_code, **options)
    except ImportError as error:
        told = str(error).strip().partition("\n")[0]
        raise ValueError(
            f"'{path}' needs a package that is not installed ({told}); pip install 'mmr1[models]' "
            "brings those that common models need"
        ) from error
    except ValueError as error:
        if trust_remote_code or "trust_remote_code" not in str(error):
            raise
        raise ValueError(
            f"'{path}' needs Python code of its own repository (auto_map), which is not run; read "
            "it and set model.trust_remote_code=true, or take a model that transformers has itself"
        ) from error


def family_name(settings: Mapping[str, Any], path: str, key: str) -> str:
    """The name of the family for a model with this ``config.json``.

    Raises:
        ValueError: There is none: its type is unknown, and it is not a model that writes.
    """
    model_type, names = str(settings.get("model_type")), FAMILIES.names()
    if model_type in names:
        return model_type
    if "vision_config" in settings:
        return GENERAL
    if any(str(name).endswith("ForCausalLM") for name in settings.get("architectures") or ()):
        return GENERAL_TEXT
    raise ValueError(
        f"{key} '{path}' is a '{model_type}' model{suggest(model_type, names)}; mmr1 trains "
        f"models of type {', '.join(sorted({*names} - {GENERAL, GENERAL_TEXT}))}, others of "
        "transformers that write text (...ForCausalLM) or see as well, and those of families that "
        "a plugin adds (docs/models.md)"
    )
