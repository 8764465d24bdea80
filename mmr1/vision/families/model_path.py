"""Check that a model is where a configuration names one. Imports no torch."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from mmr1.registry import suggest
from mmr1.vision.families.registry import FAMILIES, GENERAL, GENERAL_TEXT

ADAPTER_SETTINGS = "adapter_config.json"


def check_model_path(path: str, key: str = "model.path") -> None:
    """Check a model that is on this machine; a name on the hub is checked when it is loaded.

    Raises:
        ValueError: If there is no model in the directory, or no family for it.
    """
    check_directory_of_model(path, key)
    if (Path(path) / "config.json").is_file():
        family_name(read_settings(Path(path) / "config.json", f"{key} '{path}'"), path, key)


def check_directory_of_model(path: str, key: str) -> None:
    """Check that a path on this machine is a folder with a ``config.json``.

    Raises:
        ValueError: If it has none, or the name is one of a revision on the hub.
    """
    folder = Path(path)
    if not folder.exists() and "@" in path:
        name, _, revision = path.partition("@")
        raise ValueError(
            f"{key} '{path}': a revision is not loaded by its name; download it with `hf download "
            f"{name} --revision {revision} --local-dir FOLDER`, and name the folder"
        )
    # A path that looks like one must exist: the hub's error for it would speak of repositories.
    looks_local = path.startswith((".", "/", "~")) or path.count("/") > 1
    if not (looks_local or folder.exists()) or (folder / "config.json").is_file():
        return
    if (folder / ADAPTER_SETTINGS).is_file():
        base = read_settings(folder / ADAPTER_SETTINGS, f"{key} '{path}'")
        raise ValueError(
            f"{key} '{path}' has adapters and no model: name it in model.lora.path, and the model "
            f"that they were trained for ({base.get('base_model_name_or_path')}) in {key}"
        )
    raise ValueError(
        f"{key} '{path}' is not a model directory (no config.json there); "
        "make a small one with 'mmr1 model new' or name a Hugging Face model"
    )


def read_settings(file: Path, owner: str) -> dict[str, Any]:
    """Read a JSON object from a model's file; ``owner`` names the model in errors.

    Raises:
        ValueError: If the file is not JSON, or no object.
    """
    try:
        settings = json.loads(file.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{owner}: its {file.name} is not JSON: {error}") from error
    if not isinstance(settings, dict):
        raise ValueError(
            f"{owner}: its {file.name} is a {type(settings).__name__}, not an object; copy the "
            "file of the model there"
        )
    return settings


@contextmanager
def read_files(path: str, key: str, files: str) -> Iterator[None]:
    """Turn what a library raises about a model's files into one line with their name.

    Args:
        path: Model that ``key`` of the configuration names.
        files: Files that are read in the block.

    Raises:
        ValueError: If anything but a full memory went wrong.
    """
    try:
        yield
    except MemoryError:
        raise
    except Exception as error:  # each loader has its own ways to fail
        text = str(error).strip()
        if f"'{path}'" in text and isinstance(error, ValueError):  # one of mmr1
            raise
        if isinstance(error, RuntimeError) and "out of memory" in text:
            raise
        if isinstance(error, ImportError):
            raise ValueError(
                f"'{path}' needs a package that is not installed ({_first_line(text)}); pip "
                "install 'mmr1[models]' brings those that common models need"
            ) from error
        reason = f"{type(error).__name__}: {_first_line(text)}".removesuffix(": ")
        if "mismatch" in text:
            reason = "the weights have other shapes than its config.json says"
        raise ValueError(
            f"{key} '{path}': its {files} cannot be read ({reason}); download or copy the model "
            "again"
        ) from error


def _first_line(text: str) -> str:
    return " ".join(text.partition("\n")[0].split())[:300]


_FILES = {
    "AutoConfig": "config.json",
    "AutoTokenizer": "tokenizer.json or tokenizer_config.json",
    "AutoProcessor": "processor_config.json, preprocessor_config.json or tokenizer.json",
}


def from_pretrained(
    auto_class: Any, path: str, trust_remote_code: bool, key: str = "model.path", **options: Any
) -> Any:
    """Call ``auto_class.from_pretrained`` so that it does not ask the user anything.

    Left to itself, transformers asks on the terminal whether to run code of the repository.

    Args:
        trust_remote_code: ``model.trust_remote_code``: it is run.
        key: Configuration's key of ``path``, for errors.

    Raises:
        ValueError: If the files cannot be used, or not without such code or a package.
    """
    files = _FILES.get(auto_class.__name__, "weights")
    with read_files(path, key, files):
        try:
            return auto_class.from_pretrained(path, trust_remote_code=trust_remote_code, **options)
        except ValueError as error:
            if trust_remote_code or "trust_remote_code" not in str(error):
                raise
            raise ValueError(
                f"'{path}' needs Python code of its own repository (auto_map), which is not run; "
                "read it and set model.trust_remote_code=true, or take a model that transformers "
                "has itself"
            ) from error


def dropout_rates(settings: Mapping[str, Any]) -> dict[str, float]:
    """Return the rates above 0 by which a model drops something in training, by name.

    >>> dropout_rates({"attention_dropout": 0.5, "dropout": 0.0, "drop_path_rate": 0.1})
    {'attention_dropout': 0.5, 'drop_path_rate': 0.1}
    """
    return {
        name: value
        for name, value in settings.items()
        if isinstance(value, float) and value > 0 and "drop" in name
    }


def family_name(settings: Mapping[str, Any], path: str, key: str) -> str:
    """The name of the family for a model with this ``config.json``.

    Raises:
        ValueError: If no family fits: the model's type is unknown, and it does not generate text.
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
