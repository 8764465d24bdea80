"""``manifest.json``: a dataset's source, licence, counts, dropped rows and content hashes."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from mmr1.data.index import is_index
from mmr1.data.schema import VERSION
from mmr1.files import atomic, is_draft, sha256_of
from mmr1.parallel import in_order
from mmr1.progress import Progress

NAME = "manifest.json"
BATCH = 64
"""Files that a process hashes at a time."""


def content_hashes(folder: Path, skip: str = "") -> dict[str, str]:
    """SHA-256 of every file under a folder, by its relative path.

    Left out are the manifest, the folder ``skip``, indices, and drafts that a kill left behind.
    """
    names = sorted(_names(folder, skip))
    hashes: dict[str, str] = {}
    with Progress(f"hashing {folder.name}", "files", len(names)) as progress:
        batches = [names[start : start + BATCH] for start in range(0, len(names), BATCH)]
        jobs = ((str(folder), batch) for batch in batches)
        for batch, found in zip(batches, in_order(_hashes, jobs), strict=True):
            hashes.update(zip(batch, found, strict=True))
            progress.advance(len(batch))
    return hashes


def _names(folder: Path, skip: str) -> Iterator[str]:
    """The files that count, by their paths in the folder; strings, since there may be millions."""
    for where, folders, files in os.walk(folder):
        inside = os.path.relpath(where, folder).replace(os.sep, "/")
        if inside == ".":
            folders[:] = [name for name in folders if name != skip]
        above = "" if inside == "." else f"{inside}/"
        for name in files:
            if name == NAME or is_draft(Path(name)) or is_index(Path(name)):
                continue
            if os.path.isfile(f"{where}/{name}"):  # noqa: PTH113 - no pipe, no broken link
                yield above + name


def _hashes(folder: str, names: list[str]) -> list[str]:
    return [sha256_of(f"{folder}/{name}").hex() for name in names]


def media_hash(hashes: Mapping[str, str]) -> str:
    """One hash over the media of a dataset: their names and contents, sorted."""
    lines = "".join(f"{digest}  {name}\n" for name, digest in sorted(hashes.items()))
    return hashlib.sha256(lines.encode()).hexdigest()


def write_manifest(folder: Path, facts: Mapping[str, Any], skip: str = "") -> None:
    """Write the facts with the content hashes; files under ``skip`` are left out."""
    hashes = content_hashes(folder, skip)
    records = {n: h for n, h in hashes.items() if n.endswith((".jsonl", ".parquet"))}
    media = {n: h for n, h in hashes.items() if n not in records}
    manifest = {
        "schema_version": VERSION,
        **facts,
        "sha256": records,
        "media": {"files": len(media), "sha256": media_hash(media)},
    }
    with atomic(folder / NAME) as file:
        file.write(json.dumps(manifest, indent=2, ensure_ascii=False) + "\n")


def read_manifest(folder: Path) -> dict[str, Any] | None:
    """The manifest of a folder, or None."""
    path = folder / NAME
    return json.loads(path.read_text()) if path.is_file() else None
