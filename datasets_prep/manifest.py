"""``manifest.json``: a dataset's source, licence, counts, dropped rows and content hashes."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
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


def file_hash(path: Path) -> str:
    """SHA-256 of a file."""
    return sha256_of(path).hex()


def content_hashes(folder: Path, skip: str = "") -> dict[str, str]:
    """SHA-256 of every file under a folder, by its relative path.

    Left out are the manifest, the folder ``skip``, indices, and drafts that a kill left behind.
    """
    files = sorted(
        p
        for p in folder.rglob("*")
        if p.name != NAME
        and not is_draft(p)
        and not is_index(p)
        and p.relative_to(folder).parts[0] != skip
        and p.is_file()
    )
    hashes: dict[str, str] = {}
    with Progress(f"hashing {folder.name}", "files", len(files)) as progress:
        batches = [files[start : start + BATCH] for start in range(0, len(files), BATCH)]
        for batch, found in zip(batches, in_order(_hashes, ((b,) for b in batches)), strict=True):
            names = (p.relative_to(folder).as_posix() for p in batch)
            hashes.update(zip(names, found, strict=True))
            progress.advance(len(batch))
    return hashes


def _hashes(files: list[Path]) -> list[str]:
    return [file_hash(path) for path in files]


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
