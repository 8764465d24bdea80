"""Fingerprints of what a run reads, by content: nothing is resumed or reused that has changed.

Rows, plugins and what they import, templates, the files of models (tokenizer, chat template,
``generation_config.json``, weights), media, and the version of mmr1. ``inputs.json`` in the folder
of a run or of an evaluation holds them. Not in it: datasets of the Hub, and modules that are named
by ``package.module:attribute``.

Imports no torch.
"""

from __future__ import annotations

import ast
import hashlib
import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

from mmr1 import __version__
from mmr1.config import Config
from mmr1.config.file import redacted
from mmr1.config.run_folder import INPUTS
from mmr1.data.readers import files_of
from mmr1.files import atomic, sha256_of, stamp
from mmr1.types import Sample

FREE_SECTIONS = ("trainer", "eval", "resources")
"""Sections that may change when a run is resumed; they do not affect what a step computes."""
FREE_KEYS = ("optimizer.scheduler.steps", "data.media_root")
"""Keys that may change too: a run that becomes longer has a schedule to choose, and media that were
moved are compared by their contents."""

Fingerprints = dict[str, dict[str, str]]
"""By name: ``sha256`` of the content, and the ``stamp`` under which it was read."""
NONE: Mapping[str, Sequence[Sample]] = MappingProxyType({})
_MEDIA = "media of "
_ANY = "any"


def fingerprints(
    folder: Path, config: Config, samples: Mapping[str, Sequence[Sample]] = NONE
) -> Fingerprints:
    """Return the fingerprints of all that a configuration names.

    A file is only read if its size, time or place differ from those in ``inputs.json``.

    Args:
        folder: Folder of the run; the names of files below it are relative to it.
        samples: The samples whose media count, by the name of their dataset.
    """
    known = read_fingerprints(folder) or {}
    found = {"mmr1": {"sha256": __version__}}
    for path in _named(config):
        name = _name(path, folder)
        found[name] = _facts([path], known.get(name))
    for spec, rows in samples.items():
        media = dict.fromkeys(m.path for sample in rows for m in sample.media if m.path is not None)
        name = f"{_MEDIA}{_name(Path(spec), folder)}"
        found[name] = _facts([path for path in media if path.is_file()], known.get(name))
    return found


def _name(path: Path, folder: Path) -> str:
    return f"./{path.relative_to(folder)}" if path.is_relative_to(folder) else str(path)


def contents(section: str, tree: Any) -> list[tuple[str, str]]:
    """Return the files that values of a section name, without weights, and their digests."""
    files = dict.fromkeys(path for text in _texts(tree) for path in _files(section, text))
    return [(path.name, _content(path)) for path in files if path.suffix != WEIGHTS]


def changed(folder: Path, now: Fingerprints) -> list[str]:
    """Return the names whose fingerprints differ from those that the folder holds.

    Media are compared once the samples are known. A folder without fingerprints knows nothing.
    """
    before = read_fingerprints(folder)
    if before is None:
        return []
    names = dict.fromkeys((*before, *now))
    if not any(name.startswith(_MEDIA) for name in now):
        names = dict.fromkeys(name for name in names if not name.startswith(_MEDIA))
    return [name for name in names if _differs(before.get(name), now.get(name))]


def _differs(before: Mapping[str, str] | None, now: Mapping[str, str] | None) -> bool:
    if before is None:
        return True
    digest = None if now is None else now["sha256"]
    return digest != before["sha256"] and before.get("accepted") not in (_ANY, str(digest))


def accept(folder: Path, now: Fingerprints) -> None:
    """Accept the present contents beside those of the start, and media whatever they are.

    What the run has is written once it continues: it may still be refused.
    """
    before = read_fingerprints(folder) or {}
    for name in (*before, *now):
        kept = before.setdefault(name, {"sha256": "none"})
        kept["accepted"] = _ANY if name.startswith(_MEDIA) else str(now.get(name, {}).get("sha256"))
    write_fingerprints(folder, before)


def read_fingerprints(folder: Path) -> Fingerprints | None:
    """Read ``inputs.json``; None if there is none.

    Raises:
        ValueError: If it is damaged.
    """
    path = folder / INPUTS
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        return {name: {**facts, "sha256": facts["sha256"]} for name, facts in content.items()}
    except FileNotFoundError:
        return None
    except (ValueError, AttributeError, TypeError, KeyError) as error:
        raise ValueError(
            f"{path} is damaged ({error}); remove it to continue without knowing whether data and "
            "plugins have changed"
        ) from error


def write_fingerprints(folder: Path, found: Fingerprints) -> None:
    """Write ``inputs.json``."""
    with atomic(folder / INPUTS) as file:
        file.write(json.dumps(found, indent=1) + "\n")


def _facts(paths: Sequence[Path], known: Mapping[str, str] | None) -> dict[str, str]:
    """The fingerprint of files, which are only read if their stamps differ."""
    stamps = _joined(f"{stamp(path)} {path.stat().st_ctime_ns}" for path in paths)
    if known is not None and known.get("stamp") == stamps:
        return {"stamp": stamps, "sha256": known["sha256"]}
    digests = [_content(path) for path in paths]
    return {"stamp": stamps, "sha256": digests[0] if len(digests) == 1 else _joined(digests)}


def _joined(texts: Iterable[str]) -> str:
    return hashlib.sha256("\n".join(texts).encode()).hexdigest()


WEIGHTS = ".safetensors"
_WHOLE, _BLOCK, _BLOCKS = 1 << 23, 1 << 16, 64


def _content(path: Path) -> str:
    """SHA-256 of a file; of large weights and videos, of their size and of 64 blocks of 64 KiB."""
    size = path.stat().st_size
    if size <= _WHOLE or path.suffix not in (WEIGHTS, *_VIDEOS):
        return sha256_of(path).hex()
    digest = hashlib.sha256(str(size).encode())
    with path.open("rb") as file:
        for block in range(_BLOCKS):
            file.seek((size - _BLOCK) * block // (_BLOCKS - 1), os.SEEK_SET)
            digest.update(file.read(_BLOCK))
    return digest.hexdigest()


_VIDEOS = (".mp4", ".mkv", ".webm", ".avi", ".mov")


def _named(config: Config) -> Iterator[Path]:
    """Each file once, as the configuration names it."""
    trains = config.declaration.trains
    free = FREE_SECTIONS if trains else ("trainer", "resources")
    tree = {key: v for key, v in redacted(config).items() if key not in free}
    if not trains:
        tree["data"] = {key: v for key, v in tree["data"].items() if key != "train"}
    texts = [(section, text) for section, part in tree.items() for text in _texts(part)]
    texts += [("data", config.eval_records)] if config.eval_records else []
    yield from dict.fromkeys(path for section, text in texts for path in _files(section, text))


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
    """The files that a value names: a dataset, a model, ``file.py:attribute``, any other file."""
    if "\n" in text or len(text) > 4096:
        return []
    if model := list(_of_model(section, text)):
        return model
    if "." not in text and "/" not in text:
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


# Weights, and what changes prompts and sampling beside them.
_OF_MODEL = ("*.json", "*.jinja", "*.txt", "*.model", f"*{WEIGHTS}")


def _of_model(section: str, text: str) -> Iterator[Path]:
    """The files of a model or of adapters in a folder, or in the cache of the Hub."""
    folder = Path(text).expanduser()
    if section == "model" and text.count("/") == 1 and not folder.exists():
        from huggingface_hub import try_to_load_from_cache

        cached = try_to_load_from_cache(text, "config.json")
        folder = Path(cached).parent if isinstance(cached, str) else folder
    if any((folder / name).is_file() for name in ("config.json", "adapter_config.json")):
        for pattern in _OF_MODEL:
            yield from sorted(folder.glob(pattern))


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
