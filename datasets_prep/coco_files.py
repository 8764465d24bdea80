"""The files of COCO and RefCOCO, and where their pictures lie."""

from __future__ import annotations

import pickle
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from mmr1.data.record import parse_json

_FOLDERS = ("", "images", "train2017", "val2017", "train2014", "val2014", "images/train2014")


class _Plain(pickle.Unpickler):
    """Reads lists, mappings, texts and numbers. A pickle that names code is refused."""

    def find_class(self, module_name: str, global_name: str, /) -> Any:
        raise pickle.UnpicklingError(f"it names the code {module_name}.{global_name}")


def read_instances(path: Path) -> dict[str, Any]:
    """A file in COCO form. Raises ValueError if it is none."""
    try:
        content: Any = parse_json(path.read_text(encoding="utf-8-sig"))
    except (ValueError, UnicodeDecodeError) as error:
        raise ValueError(f"{path}: {error}") from error
    keys = {"images", "annotations"}
    if not isinstance(content, dict) or not keys <= content.keys():
        raise ValueError(f"{path} is not in COCO form: it has no 'images' and 'annotations'")
    return content


def read_refs(path: Path) -> list[dict[str, Any]]:
    """RefCOCO's ``refs(unc).p``: a pickle of plain values.

    Raises:
        ValueError: It is broken, or holds anything but plain values.
    """
    try:
        with path.open("rb") as file:
            refs = _Plain(file, encoding="utf-8", errors="replace").load()
    except Exception as error:  # a pickle can fail in any way
        raise ValueError(f"{path}: no pickle of plain values: {error}") from error
    if not isinstance(refs, list) or not all(isinstance(ref, dict) for ref in refs):
        raise ValueError(f"{path} is no list of referring expressions")
    return refs


def by_id(entries: Iterable[dict[str, Any]]) -> dict[Any, dict[str, Any]]:
    """The entries by their ``id``."""
    return {entry["id"]: entry for entry in entries}


def picture(root: Path, name: str) -> str:
    """The path of a picture, relative to the root: directly there, or in one of COCO's folders."""
    found = (f"{folder}/{name}".lstrip("/") for folder in _FOLDERS)
    return next((path for path in found if (root / path).is_file()), name)
