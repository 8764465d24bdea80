"""Read the directory of a run for the report. Missing files are allowed."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, NotRequired

import yaml
from pydantic import ConfigDict, Field, TypeAdapter, ValidationError
from typing_extensions import TypedDict

from mmr1.config.run_folder import CONFIG
from mmr1.config.secrets import redact
from mmr1.types import MediaKind


@dataclass(frozen=True, slots=True)
class Run:
    """The directory of one run; its files are read on demand.

    Attributes:
        folder: The run's output directory.
        config: ``config.yaml``, not validated, so that runs of other versions can be shown;
            credentials masked.
    """

    folder: Path
    config: Mapping[str, Any]

    @property
    def name(self) -> str:
        """The last two names of the path, as ``quickstart/rl``."""
        return "/".join(self.folder.resolve().parts[-2:])

    def metrics(self) -> dict[str, list[Any]]:
        """``metrics.jsonl`` as columns; None for steps without the metric."""
        rows = list(read_lines(self.folder / "metrics.jsonl"))
        names = dict.fromkeys(name for row in rows for name in row)
        return {name: [row.get(name) for row in rows] for name in names}

    def steps(self) -> list[int]:
        """The steps that have rollouts or a validation on disk, in order; 0 is before the first."""
        folders = (self.folder / "rollouts", self.folder / "validation")
        files = [file for folder in folders for file in folder.glob("step_*.jsonl")]
        return sorted({int(file.stem.removeprefix("step_")) for file in files})

    def rollouts(self, step: int) -> list[dict[str, Any]]:
        """The prompts of one step with their completions; those of its validation come last.

        The task of a validation's prompt begins with ``held-out`` and the way of decoding.
        """
        name = f"step_{step:06d}.jsonl"
        held_out = [
            {**row, "task": ", ".join(filter(None, ("held-out", row.get("mode"), row["task"])))}
            for row in read_lines(self.folder / "validation" / name, ROLLOUT)
        ]
        return [*read_lines(self.folder / "rollouts" / name, ROLLOUT), *held_out]

    def quarantined(self) -> list[dict[str, Any]]:
        """The rows of the data that were left out."""
        return list(read_lines(self.folder / "quarantine.jsonl"))

    def faults(self) -> dict[str, int]:
        """Counts of the faults that the run survived, by kind; empty if it met none."""
        counts: dict[str, int] = read_object(self.folder / "summary.json").get("faults", {})
        return counts

    def evaluation(self) -> dict[str, Any]:
        """``eval/result.json``; empty if the run was not evaluated."""
        return read_object(self.folder / "eval" / "result.json")

    def checkpoints(self) -> list[str]:
        """Names of the checkpoints, in order."""
        return sorted(p.name for p in (self.folder / "checkpoints").glob("step_*") if p.is_dir())

    def media_file(self, path: str) -> Path:
        """The file of a rollout's medium: ``path`` itself, or ``path`` in the run's folder."""
        file = Path(path)
        return file if file.is_file() else self.folder / path


def open_run(folder: Path) -> Run:
    """The run in a directory.

    Raises:
        ValueError: If the directory has no ``config.yaml`` that can be read, or is an evaluation's.
    """
    file = folder / CONFIG
    if (folder / "completions.jsonl").is_file():
        raise ValueError(
            f"{folder} is the folder of an evaluation (mmr1 eval), not of a run: result.json has "
            "its numbers, completions.jsonl what was sampled. Name the trainer.output_dir of a run"
        )
    if not file.is_file():
        raise ValueError(
            f"{folder} is not the directory of a run (there is no config.yaml); name the "
            "trainer.output_dir of a run"
        )
    try:
        config = yaml.safe_load(file.read_text())
    except (yaml.YAMLError, UnicodeDecodeError, ValueError, RecursionError) as error:
        raise ValueError(f"{file} is not valid YAML: {' '.join(str(error).split())}") from error
    if not isinstance(config, dict):
        raise ValueError(f"{file}: the configuration must be a mapping of keys to values")
    data, rewards = config.get("data"), config.get("rewards", {})
    sections = {"data": data, "rewards": rewards}
    if isinstance(data, dict):
        sections["data.video"] = data.get("video")
    if isinstance(rewards, dict):
        sections |= {f"rewards.{name}": reward for name, reward in rewards.items()}
    for key, section in sections.items():
        if section is not None and not isinstance(section, dict):
            raise ValueError(f"{file}: {key} must be a mapping of keys to values")
    return Run(folder, redact(config))


def read_lines(path: Path, expected: TypeAdapter[Any] | None = None) -> Iterator[dict[str, Any]]:
    """The objects of a JSON Lines file; none if the file is missing.

    A last line without a newline is skipped, because the run is still writing it.

    Args:
        path: The file.
        expected: Keys that the lines must have.

    Raises:
        ValueError: Names the file, the line that is not such an object, and its problem.
    """
    if not path.is_file():
        return
    with path.open("rb") as file:
        for number, line in enumerate(file, 1):
            if not line.endswith(b"\n"):
                return
            try:
                row = json.loads(line)
            except (ValueError, RecursionError) as error:
                raise ValueError(f"{path}:{number}: not JSON ({error})") from error
            if not isinstance(row, dict):
                raise ValueError(f"{path}:{number}: not a JSON object")
            if expected is not None:
                _check(row, expected, f"{path}:{number}")
            yield row


def _check(row: dict[str, Any], expected: TypeAdapter[Any], where: str) -> None:
    try:
        expected.validate_python(row)
    except ValidationError as error:
        first = error.errors()[0]
        key = ".".join(map(str, first["loc"]))
        raise ValueError(
            f"{where}: {key}: {first['msg']}; the file is damaged: put it back, or remove it to "
            "see the rest of the run"
        ) from error


def read_object(path: Path) -> dict[str, Any]:
    """The object of a JSON file; empty if the file is missing.

    Raises:
        ValueError: The file holds no JSON object. Names it.
    """
    if not path.is_file():
        return {}
    try:
        value = json.loads(path.read_text())
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path}: not JSON ({error})") from error
    if not isinstance(value, dict):
        raise ValueError(f"{path}: not a JSON object")
    return value


def flatten(tree: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested mappings as ``a.b.c`` keys.

    >>> flatten({"a": {"b": 1}, "c": [2]})
    {'a.b': 1, 'c': [2]}
    """
    flat: dict[str, Any] = {}
    for key, value in tree.items():
        if isinstance(value, Mapping) and value:
            flat.update(flatten(value, f"{prefix}{key}."))
        else:
            flat[f"{prefix}{key}"] = value
    return flat


_ANY_MORE = ConfigDict(extra="allow", strict=True)


class _Medium(TypedDict):
    __pydantic_config__ = _ANY_MORE  # type: ignore[misc]

    kind: MediaKind
    path: str | None
    digest: str
    seen: NotRequired[list[int] | None]
    options: NotRequired[dict[str, Any] | None]


class _Turn(TypedDict):
    __pydantic_config__ = _ANY_MORE  # type: ignore[misc]

    role: str
    text: str
    media: list[_Medium]
    answers: NotRequired[list[list[dict[str, Any]]]]


class _Completion(TypedDict):
    __pydantic_config__ = _ANY_MORE  # type: ignore[misc]

    text: str
    reward: float | int | None
    components: dict[str, Any]
    status: str
    turns: NotRequired[list[_Turn]]
    vision_use: NotRequired[list[Annotated[list[str | float], Field(min_length=2, max_length=2)]]]


class _Row(TypedDict):
    __pydantic_config__ = _ANY_MORE  # type: ignore[misc]

    id: str
    prompt: str
    answer: Any
    task: str | None
    media: list[_Medium]
    completions: list[_Completion]


ROLLOUT: TypeAdapter[Any] = TypeAdapter(_Row)
