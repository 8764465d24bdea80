"""``manifest.json``: a dataset's source, licence, counts, dropped rows and content hashes."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mmr1.data.schema import VERSION
from mmr1.files import atomic

NAME = "manifest.json"


def file_hash(path: Path) -> str:
    """SHA-256 of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def content_hashes(folder: Path, skip: str = "") -> dict[str, str]:
    """SHA-256 of every file under a folder, by its relative path; the manifest left out."""
    files = sorted(
        p
        for p in folder.rglob("*")
        if p.is_file() and p.name != NAME and p.relative_to(folder).parts[0] != skip
    )
    return {p.relative_to(folder).as_posix(): file_hash(p) for p in files}


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
