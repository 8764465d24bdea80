"""Check the output directory of a run: empty, or with the run that is to be resumed.

Imports no torch: this is asked before anything is loaded.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from mmr1.config import Config
from mmr1.config.file import read_written, redacted
from mmr1.config.run_folder import CONFIG, INPUTS, RESUME
from mmr1.config.secrets import is_same
from mmr1.logs import log_to_file
from mmr1.trainer.runs.fingerprints import (
    FREE_KEYS,
    FREE_SECTIONS,
    Fingerprints,
    accept,
    changed,
    fingerprints,
)

logger = logging.getLogger(__name__)

_ANOTHER = "name another trainer.output_dir, or remove this one"


def check_output_dir(config: Config, *, resume: bool) -> None:
    """Check the output directory before anything is loaded.

    A run that failed before its first step leaves nothing to resume: its directory is free.

    Raises:
        ValueError: If the directory holds another run, files that no configuration explains, or a
            run whose configuration or whose data and plugins have changed.
    """
    path = Path(config.trainer.output_dir)
    written = path / CONFIG
    held = _held(path)
    if not held and (not written.exists() or (path / "run.lock").exists()):
        return
    if not resume:
        names = ", ".join(held or [written.name])
        raise ValueError(
            f"trainer.output_dir '{path}' already holds a run ({names}); continue it with "
            f"{RESUME}, {_ANOTHER}"
        )
    if not written.exists():
        raise ValueError(
            f"trainer.output_dir '{path}' holds {', '.join(held)} and no config.yaml, so nothing "
            f"shows that they are of this run; put its config.yaml back, {_ANOTHER}"
        )
    if keys := changed_keys(read_written(written), config):
        raise ValueError(
            f"{written}: the run was started with another {', '.join(keys)}; "
            f"resume it as it was started, with {RESUME}, or name another trainer.output_dir "
            f"(only {', '.join((*FREE_SECTIONS, *FREE_KEYS))} may change)"
        )
    if not (path / INPUTS).exists():
        logger.warning("%s: it is not known whether the data is that of the start", path / INPUTS)
    refuse_changed(config, fingerprints(path, config))


def refuse_changed(config: Config, found: Fingerprints) -> None:
    """Refuse to continue a run with other data, plugins, model files or media.

    Raises:
        ValueError: If a fingerprint differs from that of the start; names them.
    """
    path = Path(config.trainer.output_dir)
    if names := changed(path, found):
        raise ValueError(
            f"since the run in {path} was started, {_and(names)} changed, so it would not "
            "continue as it was; put the contents back, name another trainer.output_dir, or "
            "continue with them: --resume --accept-changes"
        )


def accept_changes(config: Config) -> None:
    """Accept the present contents of what the configuration names, and of its media.

    Raises:
        ValueError: The digests cannot be read.
    """
    path = Path(config.trainer.output_dir)
    if not (path / INPUTS).exists():
        return
    found = fingerprints(path, config)
    names = changed(path, found)
    accept(path, found)
    with log_to_file(path / "train.log"):
        logger.warning("the run continues although %s changed", _and([*names, "perhaps media"]))


def changed_keys(before: Config, now: Config) -> list[str]:
    """The keys whose values differ and that a run may not change, as ``section.key``."""
    return [
        key
        for key in differing_keys(before, now)
        if key.partition(".")[0] not in FREE_SECTIONS and key not in FREE_KEYS
    ]


def differing_keys(before: Config, now: Config) -> list[str]:
    """The keys whose values differ, as ``section.key``.

    Credentials are not compared: what is written of a run does not hold them.
    """
    old, new = redacted(before), redacted(now)
    return [key for section in new for key in _differing(section, old.get(section), new[section])]


def _differing(key: str, old: Any, new: Any) -> Iterator[str]:
    """The keys below ``key`` whose values differ; another type is one of them."""
    if key == "rollout.engine":
        old, new = _anywhere(old), _anywhere(new)
    sections = isinstance(old, dict) and isinstance(new, dict)
    if not sections:
        if not is_same(old, new):
            yield key
    elif old.get("type") != new.get("type"):
        yield f"{key}.type"
    else:
        for name in new:
            yield from _differing(f"{key}.{name}", old.get(name), new[name])


def _anywhere(engine: dict[str, Any]) -> dict[str, Any]:
    """The settings of an engine without its place: colocated or not, vLLM samples the same."""
    placed = ("colocate", "offload_trainer", "tensor_parallel_size")
    return {k: v for k, v in engine.items() if k not in placed}


def _and(names: list[str]) -> str:
    shown = ", ".join(names[:5])
    return f"{shown} and {len(names) - 5} more files" if len(names) > 5 else shown


def _held(path: Path) -> list[str]:
    """The files of steps in the directory."""
    checkpoints = sorted((path / "checkpoints").glob("step_*"))
    last = [str(checkpoints[-1].relative_to(path))] if checkpoints else []
    logs = [name for name in ("metrics.jsonl", "rollouts") if (path / name).exists()]
    return logs + last
