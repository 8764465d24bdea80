"""``mmr1 export``: a checkpoint as a model directory with a model card, pushed to the Hub."""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jinja2
from huggingface_hub import HfApi
from huggingface_hub.utils import HFValidationError, validate_repo_id

from mmr1.config import Config
from mmr1.config.file import read_written, write_yaml
from mmr1.config.run_folder import CONFIG
from mmr1.trainer.models.hub_files import with_older_keys
from mmr1.trainer.models.lora import ADAPTER_FOLDER
from mmr1.trainer.models.scalar_model import is_scalar_model
from mmr1.trainer.models.state import TRAINING
from mmr1.trainer.runs.checkpoint import MANIFEST, MANIFEST_DIGEST, verify_checkpoint

CARD = jinja2.Environment(trim_blocks=True, lstrip_blocks=True).from_string(
    """\
---
{% if base_model %}
base_model: {{ base_model }}
{% endif %}
{% if pipeline_tag %}
pipeline_tag: {{ pipeline_tag }}
{% endif %}
library_name: {{ "peft" if adapter else "transformers" }}
tags: [mmr1, {{ command }}]
---
# {{ name }}

{{ what }} of `{{ config.model.path }}`, step {{ step }} of {{ config.trainer.steps }},
trained with mmr1.

| | |
|---|---|
{% for label, value in facts %}
| {{ label }} | {{ value }} |
{% endfor %}

{% if metrics %}
At that step:

| metric | value |
|---|---|
{% for label, value in metrics %}
| {{ label }} | {{ "%.4g" % value }} |
{% endfor %}

{% endif %}
{% if unread %}
Only transformers 5 reads it: transformers 4 has no setting for the {{ unread | join(", ") }}.

{% endif %}
The whole configuration of the run is in `mmr1_config.yaml`.
"""
)
_LEFT_OUT = {MANIFEST, MANIFEST_DIGEST, TRAINING, ADAPTER_FOLDER}


def export(checkpoint: Path, output: Path, *, adapter: bool = False) -> Path:
    """Write a directory that transformers and vLLM (with ``adapter``: peft) can load.

    Raises:
        ValueError: If the checkpoint or its adapter is missing, or the output exists.
        DamagedCheckpointError: A file does not match the manifest.
    """
    run = checkpoint.parent.parent
    if not (checkpoint / MANIFEST).is_file() or not (run / CONFIG).is_file():
        raise ValueError(
            f"{checkpoint} is not a checkpoint of a run; name one like RUN/checkpoints/step_000100"
        )
    if output.exists():
        raise ValueError(f"{output} already exists; name another directory")
    if adapter and not (checkpoint / ADAPTER_FOLDER).is_dir():
        raise ValueError(
            f"{checkpoint} has no adapter: the run had no model.lora; leave --adapter out"
        )
    manifest = verify_checkpoint(checkpoint)
    source = checkpoint / ADAPTER_FOLDER if adapter else checkpoint
    shutil.copytree(source, output, ignore=lambda _, names: _LEFT_OUT & set(names))
    write_yaml(output / "mmr1_config.yaml", read_written(run / CONFIG))
    config = read_written(output / "mmr1_config.yaml")  # the card too is without credentials
    tag = _pipeline_tag(checkpoint)
    unread = [] if adapter else with_older_keys(_settings(checkpoint))[1]
    (output / "README.md").write_text(_card(config, manifest, output.name, adapter, tag, unread))
    return output


def _pipeline_tag(checkpoint: Path) -> str | None:
    """The Hub's name of the model's task; None for a reward model, for which it has none."""
    if is_scalar_model(str(checkpoint)):
        return None
    return "image-text-to-text" if "vision_config" in _settings(checkpoint) else "text-generation"


def _settings(checkpoint: Path) -> dict[str, Any]:
    settings: dict[str, Any] = json.loads((checkpoint / "config.json").read_text())
    return settings


def _hub_name(path: str) -> str | None:
    """The model's name on the Hub, which refuses a card with any other base; None for a folder."""
    if Path(path).exists():
        return None
    try:
        validate_repo_id(path)
    except HFValidationError:
        return None
    return path


def _card(
    config: Config,
    manifest: dict[str, Any],
    name: str,
    adapter: bool,
    pipeline_tag: str | None,
    unread: Sequence[str],
) -> str:
    metrics = {k: v for k, v in manifest["metrics"].items() if not k.startswith(("time/", "step"))}
    is_rl = config.declaration.kind == "policy"
    rewards = ", ".join(
        f"{name} ({reward.type}, weight {reward.weight:g})"
        for name, reward in config.rewards.items()
    )
    data = config.data.train
    sources = data if isinstance(data, str) else ", ".join(data or {})
    facts = [
        ("data", f"`{sources}`"),
        ("algorithm", config.algorithm.name if is_rl else config.declaration.about.rstrip(".")),
        ("rewards", rewards if config.samples else "none"),
        ("learning rate", f"{config.optimizer.lr:g}"),
        ("seed", config.seed),
    ]
    if is_rl:
        size = f"{config.data.train_batch_size} x {config.rollout.n}"
        facts.insert(3, ("prompts and completions a step", size))
    return CARD.render(
        config=config,
        base_model=_hub_name(config.model.path),
        name=name,
        adapter=adapter,
        pipeline_tag=pipeline_tag,
        unread=unread,
        command=config.algorithm.name if is_rl else config.command,
        what="LoRA adapter" if adapter else "Fine-tuned weights",
        step=manifest["step"],
        facts=facts,
        metrics=sorted(metrics.items()),
    )


def check_repository(name: str) -> None:
    """Raises ValueError for an invalid name of a repository."""
    try:
        validate_repo_id(name)
    except HFValidationError as error:
        raise ValueError(f"--push-to-hub {name}: {error}") from None


def push(folder: Path, name: str, *, private: bool) -> str:
    """Upload the folder to the repository, which is created if needed; returns its address.

    Raises:
        ValueError: If the folder could not be uploaded; it stays as it is.
    """
    api = HfApi()
    try:
        repository = api.create_repo(name, private=private, exist_ok=True)
        api.upload_folder(
            repo_id=repository.repo_id,
            folder_path=folder,
            commit_message=f"mmr1 export of {folder.name}",
        )
    except Exception as error:  # whatever its client's library raises
        raise ValueError(
            f"{folder} is written, but was not pushed to {name} ({type(error).__name__}: {error}); "
            f"log in with `hf auth login`, then run: hf upload {name} {folder}"
        ) from error
    return str(repository)
