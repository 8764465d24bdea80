"""What the numbers depend on that are kept beside large data, besides the data themselves."""

from __future__ import annotations

from importlib.metadata import version
from pathlib import Path
from typing import Any

from mmr1.config import Config

# A model's folder changes its prompts by these; its weights do not.
_PROMPT_FILES = ("*.json", "*.jinja", "*.txt", "*.model")


def length_facts(config: Config) -> dict[str, Any]:
    """What the length of a prompt depends on: the model's tokenizer, processor and template."""
    folder = Path(config.model.path)
    files = sorted(p for pattern in _PROMPT_FILES for p in folder.glob(pattern))
    return {
        "model": config.model.model_dump(mode="json"),
        "files": [(p.name, *_stamp(p)) for p in files],
        "data": config.data.model_dump(mode="json", exclude={"train", "train_batch_size"}),
        "transformers": version("transformers"),
    }


def gold_facts(config: Config) -> dict[str, Any]:
    """What the check of a gold answer depends on: the reward functions and their files."""
    rewards = config.rewards.model_dump(mode="json")
    return {
        "rewards": rewards,
        "files": [(str(p), *_stamp(p)) for p in _files(rewards)],
        "math-verify": version("math-verify"),
    }


def _files(value: Any) -> list[Path]:
    """The files that strings of the configuration name, as ``FILE.py`` or ``FILE.py:FUNCTION``."""
    if isinstance(value, dict):
        return [path for inner in value.values() for path in _files(inner)]
    if isinstance(value, list):
        return [path for inner in value for path in _files(inner)]
    if not isinstance(value, str) or len(value) > 1000:
        return []
    return [path for name in {value, value.rpartition(":")[0]} if (path := Path(name)).is_file()]


def _stamp(path: Path) -> tuple[int, int]:
    facts = path.stat()
    return facts.st_size, facts.st_mtime_ns
