"""Choose the forward of a model without a family here: packed, if a probe allows it, or padded."""

from __future__ import annotations

import hashlib
import json
import logging
import os
from contextlib import suppress
from dataclasses import asdict
from functools import cache
from pathlib import Path
from typing import Any, Literal, Protocol

import torch
import transformers

import mmr1.attention
from mmr1.files import atomic
from mmr1.trainer.forward.any_model.forward import Verdict, admit
from mmr1.trainer.forward.any_model.probe import probe, with_completions
from mmr1.trainer.forward.sequences import GroupInput
from mmr1.vision.families.family import ReadPrompt

logger = logging.getLogger(__name__)

Wanted = Literal["auto", "packed", "padded"]


class Examples(Protocol):
    """Example prompts of a model that has no family here, for the probe."""

    @property
    def tokenizer(self) -> Any: ...

    def example_prompts(self) -> list[ReadPrompt]:
        """Prompts of all kinds that the model reads."""
        ...


def settle(model: Any, family: Examples, wanted: Wanted, name: str) -> None:
    """Probe a loaded model, and let it take packed sequences where that is correct.

    Args:
        name: Of the model, for errors: key and value.

    Raises:
        ValueError: Neither forward of the model is right, or it is to be packed and cannot be.
    """
    admit(model, None)
    verdict = verdict_on(type(model), model.config, family)
    if verdict.status == "refused":
        raise ValueError(f"{name}: {verdict.why}; such a model cannot be trained on completions")
    if verdict.status == "padded":
        if wanted == "packed":
            raise ValueError(
                f"model.sharing=packed and {name}: {verdict.why}; set model.sharing=auto, with "
                "which each completion computes its prompt again"
            )
        if wanted == "auto":
            logger.warning("%s: completions do not share their prompt: %s", name, verdict.why)
    elif wanted != "padded":
        admit(model, verdict)


def verdict_on(model_class: Any, config: Any, family: Examples) -> Verdict:
    """The verdict of the probe, which runs once for a class, its configuration and the versions."""
    file = _file(model_class, config)
    with suppress(OSError, ValueError, TypeError):
        return Verdict(**json.loads(file.read_text(encoding="utf-8")))
    verdict = probe(model_class, config, _examples(family))
    if verdict.status == "padded":  # perhaps for want of memory, say
        return verdict
    with suppress(OSError):  # a probe is a matter of seconds
        file.parent.mkdir(parents=True, exist_ok=True)
        with atomic(file) as out:
            json.dump(asdict(verdict), out)
    return verdict


def _examples(family: Examples) -> list[GroupInput]:
    tokenizer = family.tokenizer
    special = {*tokenizer.get_added_vocab().values(), *tokenizer.all_special_ids}
    text = [token for token in range(min(len(tokenizer), 1000)) if token not in special]
    return with_completions(family.example_prompts(), torch.tensor(text))


_OF_FILES = {"_name_or_path", "dtype", "transformers_version"}


def _file(model_class: Any, config: Any) -> Path:
    """The file of the verdict on a class and configuration."""
    known = {
        "class": f"{model_class.__module__}.{model_class.__qualname__}",
        "versions": (transformers.__version__, torch.__version__, _code()),
        "configuration": {n: v for n, v in config.to_dict().items() if n not in _OF_FILES},
    }
    digest = hashlib.sha256(json.dumps(known, sort_keys=True, default=str).encode()).hexdigest()
    root = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(root) / "mmr1" / "sharing" / f"{digest[:32]}.json"


@cache
def _code() -> str:
    """A digest of the code that a verdict is about."""
    files = (*sorted(Path(__file__).parent.glob("*.py")), Path(mmr1.attention.__file__))
    return hashlib.sha256(b"".join(file.read_bytes() for file in files)).hexdigest()
