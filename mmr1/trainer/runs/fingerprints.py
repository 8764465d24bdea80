"""The files that a run depends on: their digests, and which of them have changed.

Rows, plugins and templates that the configuration names, and the files of the model besides its
weights: tokenizer, chat template, generation settings. A resumed run or evaluation would otherwise
continue with other questions, answers or rewards under the same names. ``OUTPUT/inputs.json`` holds
the digests. Not in it: the model's weights, media, datasets of the Hub, and modules that are named
by ``package.module:attribute``.

Imports no torch.
"""

from __future__ import annotations

import ast
import json
import logging
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

from mmr1.config import Config
from mmr1.config.file import redacted
from mmr1.config.run_folder import INPUTS
from mmr1.data.readers import files_of
from mmr1.files import atomic, sha256_of

logger = logging.getLogger(__name__)

FREE_SECTIONS = ("trainer", "eval", "resources")
"""Sections that may change when a run is resumed; they do not affect what a step computes."""
FREE_KEYS = ("optimizer.scheduler.steps",)
"""Keys that may change too, as a run that becomes longer has a schedule to choose."""


MODEL_FILES = ("*.json", "*.jinja", "*.txt", "*.model")
"""Files of a model's folder that change its prompts and what it generates, besides its weights."""


def model_files(path: str) -> list[Path]:
    """Return the files of a local model besides its weights; none of one that is on the Hub."""
    return sorted(file for pattern in MODEL_FILES for file in Path(path).glob(pattern))


def fingerprints(config: Config, free: Collection[str] = FREE_SECTIONS) -> dict[str, str]:
    """Return the digests of the files that a configuration depends on, by their paths.

    Args:
        free: Sections whose files do not count.
    """
    return {name: _facts(path, None)["sha256"] for name, path in _named(config, free)}


def write_digests(folder: Path, config: Config) -> None:
    """Write ``inputs.json`` of a run that begins or continues."""
    known = _read(folder / INPUTS)
    _write(folder, {name: _facts(path, known.get(name)) for name, path in _named(config)})


def changed_files(folder: Path, config: Config) -> list[str]:
    """The files whose contents differ from those that the run had, or that are gone.

    A run of an earlier version has no digests: nothing is known, and the log says so.
    """
    path = folder / INPUTS
    if not path.exists():
        if (folder / "config.yaml").exists():
            logger.warning(
                "%s is not there, so it is not known whether data and plugins are those that the "
                "run was started with",
                path,
            )
        return []
    now = dict(_named(config))
    return [
        name
        for name, before in _read(path).items()
        if (digest := _digest(now.get(name), before)) != before["sha256"]
        and digest != before.get("accepted", before["sha256"])
    ]


def accept(folder: Path, config: Config, names: Collection[str]) -> None:
    """Accept these files as unchanged, in their present contents and in those of the start.

    What the run has is written once it continues: it may still be refused.
    """
    now, known = dict(_named(config)), _read(folder / INPUTS)
    for name in names:
        known[name]["accepted"] = _digest(now.get(name), known[name])
    _write(folder, known)


def _digest(path: Path | None, known: Mapping[str, Any]) -> str | None:
    return None if path is None else str(_facts(path, known)["sha256"])


def _write(folder: Path, digests: Mapping[str, Any]) -> None:
    with atomic(folder / INPUTS) as file:
        file.write(json.dumps(digests, indent=1) + "\n")


def _facts(path: Path, known: Mapping[str, Any] | None) -> dict[str, Any]:
    """Digest, size and times of a file, which is only read if size or times differ."""
    state = path.stat()
    facts = {"size": state.st_size, "mtime_ns": state.st_mtime_ns, "ctime_ns": state.st_ctime_ns}
    if known is not None and known.items() >= facts.items():
        return {**facts, "sha256": known["sha256"]}
    return {**facts, "sha256": sha256_of(path).hex()}


def _read(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        return {name: facts for name, facts in content.items() if "sha256" in facts}
    except FileNotFoundError:
        return {}
    except (ValueError, AttributeError, TypeError) as error:
        raise ValueError(
            f"{path} is damaged ({error}); remove it to continue without knowing whether data and "
            "plugins have changed"
        ) from error


def _named(config: Config, free: Collection[str] = FREE_SECTIONS) -> Iterator[tuple[str, Path]]:
    """Each file once, with its path as the configuration names it."""
    tree = {key: v for key, v in redacted(config).items() if key not in free}
    texts = [(section, text) for section, part in tree.items() for text in _texts(part)]
    texts += [("data", config.eval_records)] if config.eval_records else []
    files = [path for section, text in texts for path in _files(section, text)]
    files += model_files(config.model.path)
    yield from dict.fromkeys((str(path), path) for path in files)


def _texts(tree: Any) -> Iterator[str]:
    """The strings in a tree, keys of mappings included: ``data.train`` has its files there."""
    if isinstance(tree, str):
        yield tree
    elif isinstance(tree, Mapping):
        for key, value in tree.items():
            yield str(key)
            yield from _texts(value)
    elif isinstance(tree, list):
        for value in tree:
            yield from _texts(value)


def _files(section: str, text: str) -> list[Path]:
    """The files that a value names: a dataset, ``file.py:attribute`` or any other file."""
    if ("." not in text and "/" not in text) or "\n" in text or len(text) > 4096:
        return []
    if section == "data" and (Path(text.partition("@")[0]).exists() or Path(text).exists()):
        try:
            if files := files_of(text):
                return files
        except ValueError:  # no dataset, such as the folder of the media
            pass
    name, separator, _ = text.rpartition(":")
    path = Path(name if separator and name.endswith(".py") else text).expanduser()
    if not path.is_file():
        return []
    return list(_with_imports(path)) if path.suffix == ".py" else [path]


def _with_imports(plugin: Path) -> dict[Path, None]:
    """A plugin, and the modules beside it that it imports, and that they import."""
    found: dict[Path, None] = {}
    waiting = [plugin]
    while waiting:
        path = waiting.pop()
        if path in found:
            continue
        found[path] = None
        for name in _imported(path):
            beside = plugin.parent / name
            waiting += [file for file in (beside.with_suffix(".py"),) if file.is_file()]
            waiting += sorted(beside.rglob("*.py")) if beside.is_dir() else []
    return found


def _imported(path: Path) -> set[str]:
    """The top-level names that a module imports."""
    try:
        tree = ast.parse(path.read_bytes())
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return set()  # the plugin's own error, when it is loaded
    names: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            module = node.module or ""
            names |= {module.partition(".")[0]} if module else {a.name for a in node.names}
    return names - {""}
