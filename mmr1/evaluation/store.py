"""The folder of one model's completions on one dataset, from which an evaluation can continue."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path

from mmr1.config import Config
from mmr1.config.file import published, write_yaml
from mmr1.report.run_reader import read_lines
from mmr1.trainer.runs.output import append_json, replace_jsonl
from mmr1.trainer.validation.evaluate import Evaluation, Row, write_evaluation
from mmr1.types import Sample

# Keys that affect a completion or its score. Others may change when an evaluation is continued.
DECIDING = ("seed", "model", "data", "rewards")
DECIDING_ROLLOUT = ("max_prompt_length", "max_response_length", "stop")
DECIDING_EVAL = ("accuracy_function", "accuracy_thresholds", "group_by")


class Store:
    """The folder of one evaluation.

    Raises:
        ValueError: It holds completions of another evaluation.
    """

    def __init__(self, folder: Path, config: Config, samples: Sequence[Sample]) -> None:
        self._folder = folder
        self._settings = settings(config, samples)
        file = folder / "settings.json"
        if file.is_file():
            self._check(json.loads(file.read_text()))
        elif (folder / "completions.jsonl").exists():
            raise ValueError(
                f"{folder} holds completions but no settings.json that describes them; name "
                "another eval.output_dir, or remove it"
            )
        self.config = config

    def _check(self, stored: dict[str, object]) -> None:
        differs = [key for key, value in self._settings.items() if stored.get(key) != value]
        if differs:
            raise ValueError(
                f"{self._folder} holds an evaluation with another {', '.join(differs)}; name "
                "another eval.output_dir, or remove it"
            )

    def rows(self) -> list[Row]:
        """The completions on disk; a last line that the interruption cut off is removed."""
        file = self._folder / "completions.jsonl"
        if file.is_file():
            with file.open("rb+") as lines:
                lines.truncate(file.read_bytes().rfind(b"\n") + 1)
        return list(read_lines(file))

    def save(self, rows: Sequence[Row]) -> None:
        """Add the completions of a batch."""
        self._folder.mkdir(parents=True, exist_ok=True)
        file = self._folder / "settings.json"
        if not file.exists():
            file.write_text(json.dumps(self._settings, indent=2) + "\n")
            write_yaml(self._folder / "config.yaml", self.config)
        append_json(self._folder / "completions.jsonl", rows)

    def finish(self, result: Evaluation, dropped: Sequence[dict[str, str]]) -> None:
        """Write the result, the completions in the order of the records, and the rows left out."""
        write_evaluation(self._folder, result)
        replace_jsonl(self._folder / "quarantine.jsonl", dropped)


def settings(config: Config, samples: Sequence[Sample]) -> dict[str, object]:
    """Everything that a completion and its score depend on, mostly keys of the configuration."""
    tree = published(config)
    values = {key: tree[key] for key in DECIDING}
    del values["data"]["train_batch_size"]
    values |= {f"rollout.{key}": tree["rollout"][key] for key in DECIDING_ROLLOUT}
    sampled = tree["eval"]["sampled"] or {"n": 0}
    values |= {f"eval.sampled.{key}": v for key, v in sampled.items() if key != "best_of"}
    values["rollout.engine.dtype"] = config.rollout_dtype
    values |= {f"eval.{key}": tree["eval"][key] for key in DECIDING_EVAL}
    records = [(s.id, s.question, str(s.answer)) for s in samples]
    return values | {"records": _digest(records), "weights": _digest(_weights(config.model.path))}


def _weights(model: str) -> list[tuple[str, int, int]]:
    """Names, sizes and times of a local model's weight files, which change when it is retrained."""
    files = sorted(Path(model).glob("*.safetensors"))
    return [(file.name, file.stat().st_size, file.stat().st_mtime_ns) for file in files]


def _digest(value: object) -> str:
    return hashlib.sha256(repr(value).encode("utf-8", "replace")).hexdigest()
