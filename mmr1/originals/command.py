"""``mmr1 recipe check``: an exact recipe beside a checkout of its original."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

from mmr1.config.file import load_config
from mmr1.originals.certificate import certify
from mmr1.originals.projects import original as project_of
from mmr1.vision.families.tiny import new_model

_FAMILIES = {"r1_v_clevr": "qwen2_vl"}


def check_recipe(
    folder: Path, original: Path, model: str | None, output: Path | None
) -> Iterator[str]:
    """Write the certificate; what to say of it.

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
            new_model(Path(small), family=_FAMILIES.get(name, "qwen2_5_vl"))
        path = f"model.path={model or small}"
        config = load_config(files[0], [path])
        written = output or Path("runs") / name / "certificate"
        for check in certify(name, config, original.resolve(), written):
            yield f"{check.name}: {check.equal} of {check.compared} equal"
    yield f"written: {written / 'certificate.md'} and certificate.json"
