"""Check a dataset as a training run and its reward functions will read it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from datasets_prep.manifest import content_hashes, media_hash, read_manifest
from datasets_prep.progress import Progress
from datasets_prep.record_checks import check_sample
from datasets_prep.record_files import record_files
from mmr1.data.record import decode, parse_json, read_lines

Problem = tuple[str, str]
"""``(location, what is wrong)``."""


def validate(path: Path) -> tuple[int, list[Problem]]:
    """The number of records, and all problems.

    Checks the schema, ids, placeholders, media (they decode and have the stated size), gold answers
    (the reward function of the task can read them), and the hashes of the manifest.
    """
    total, problems = 0, list(_check_manifest(path)) if path.is_dir() else []
    for file in record_files(path):
        lines = list(read_lines(file))
        total += len(lines)
        ids: dict[str, int] = {}
        with Progress(f"validating {file.name}", "records", len(lines)) as progress:
            for number, line in lines:
                problem = _problem(line, file.parent, ids, number)
                if problem is not None:
                    problems.append((f"{file}:{number}", problem))
                progress.advance(1)
        if not lines:
            problems.append((str(file), "holds no records"))
    return total, problems


def _problem(line: str, root: Path, ids: dict[str, int], number: int) -> str | None:
    try:
        sample = decode(parse_json(line), root)
        if sample.id in ids:
            return f"the id '{sample.id}' appears on line {ids[sample.id]} already"
        ids[sample.id] = number
        check_sample(sample)
    except ValueError as error:
        return str(error)
    return None


def _check_manifest(folder: Path) -> list[Problem]:
    manifest: dict[str, Any] | None = read_manifest(folder)
    if manifest is None:
        return []
    hashes = content_hashes(folder)
    records = manifest["sha256"]
    problems = [
        (str(folder / name), "is not the file of the manifest (its hash differs)")
        for name, digest in records.items()
        if hashes.get(name) != digest
    ]
    if (
        media_hash({n: h for n, h in hashes.items() if n not in records})
        != (manifest["media"]["sha256"])
    ):
        problems.append((str(folder), "its media are not those of the manifest"))
    return problems
