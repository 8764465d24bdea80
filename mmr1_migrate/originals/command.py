"""``mmr1 recipe check``: an exact recipe beside a checkout of its original."""

from __future__ import annotations

import os
import re
import tempfile
from collections.abc import Iterator
from pathlib import Path

from mmr1.config.file import load_config
from mmr1.vision.families.registry import DEFAULT_FAMILY, FAMILIES
from mmr1.vision.families.tiny import new_model
from mmr1_migrate.originals.certificate import certify
from mmr1_migrate.originals.projects import original as project_of


def check_recipe(
    folder: Path,
    original: Path,
    model: str | None,
    output: Path | None,
    commit: str | None = None,
) -> Iterator[str]:
    """Write the certificate; yields lines about it.

    Raises:
        ValueError: The recipe in this folder has no exact configuration for RL, or the checkout is
            none of its original.
    """
    name = folder.name
    files = [*folder.glob("exact_rl.yaml"), *folder.glob("exact_grpo.yaml")]
    if not files:
        raise ValueError(f"recipe '{name}' has no exact_rl.yaml beside its own files")
    project_of(name, original)
    os.environ["ORIGINAL"] = str(original.resolve())
    with tempfile.TemporaryDirectory() as small:
        if model is None:
            new_model(Path(small), family=_family_named(load_config(files[0]).model.path))
        config = load_config(files[0], [f"model.path={model or small}"])
        written = output or Path("runs") / name / "certificate"
        for check in certify(name, config, original.resolve(), written, commit=commit):
            yield f"{check.name}: {check.equal} of {check.compared} equal"
    yield f"written: {written / 'certificate.md'} and certificate.json"


def _family_named(model: str) -> str:
    """The family in a model's name, such as ``Qwen/Qwen2-VL-2B-Instruct``; else the default."""
    name = re.sub(r"\W", "_", model).lower()
    return next((family for family in FAMILIES.names() if family in name), DEFAULT_FAMILY)
