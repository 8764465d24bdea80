"""Generators: datasets that ``mmr1-data make`` creates; one file each."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from datasets_prep.manifest import content_hashes, media_hash, read_manifest, write_manifest
from mmr1.data.record import write_records
from mmr1.files import atomic_folder
from mmr1.registry import Registry
from mmr1.types import Sample


@dataclass(frozen=True)
class Generator:
    """A generator of one dataset.

    Attributes:
        name: Its name in ``mmr1-data make``.
        description: One line for ``mmr1-data list``.
        source: Where its raw material comes from.
        licence: The licence of that material.
        build: ``(folder, seed) -> samples of each split``. Writes the media under the folder; equal
            seeds give equal bytes.
    """

    name: str
    description: str
    source: str
    licence: str
    build: Callable[[Path, int], Mapping[str, Sequence[Sample]]]


GENERATORS = Registry(
    "dataset to make",
    {
        "calculate": "datasets_prep.generators.calculate:CALCULATE",
        "counting": "datasets_prep.generators.counting:COUNTING",
        "digits": "datasets_prep.generators.digits:DIGITS",
        "frame": "datasets_prep.generators.frame:FRAME",
        "grounding": "datasets_prep.generators.grounding:GROUNDING",
        "video": "datasets_prep.generators.video:VIDEO",
        "zoom": "datasets_prep.generators.zoom:ZOOM",
    },
)


def make(name: str, output: Path, seed: int) -> dict[str, Any]:
    """Make the dataset ``name`` in ``output``; returns its manifest.

    Nothing is done if the folder already holds the same dataset.

    Raises:
        ValueError: No such dataset, or the folder holds something else.
    """
    generator: Generator = GENERATORS.load(name)
    facts = {
        "name": generator.name,
        "source": generator.source,
        "licence": generator.licence,
        "seed": seed,
    }
    if output.exists() and (not output.is_dir() or any(output.iterdir())):
        return _existing(output, facts)
    with atomic_folder(output) as staging:
        splits = generator.build(staging, seed)
        for split, samples in splits.items():
            write_records(staging / f"{split}.jsonl", samples)
        counts = {split: len(samples) for split, samples in splits.items()}
        write_manifest(staging, {**facts, "counts": counts})
    manifest = read_manifest(output)
    assert manifest is not None
    return manifest


def _existing(output: Path, facts: dict[str, Any]) -> dict[str, Any]:
    """The manifest of an existing folder. Raises ValueError unless it is this very dataset."""
    manifest = read_manifest(output) if output.is_dir() else None
    if manifest is None or any(manifest.get(key) != value for key, value in facts.items()):
        raise ValueError(f"{output} holds something else; remove it or name another --output")
    hashes = content_hashes(output)
    records = manifest["sha256"]
    media = media_hash({n: h for n, h in hashes.items() if n not in records})
    if any(hashes.get(n) != h for n, h in records.items()) or media != manifest["media"]["sha256"]:
        raise ValueError(f"{output} was altered since it was made; remove it and make it again")
    return manifest
