"""The data of the page: a summary of each run, the rollouts of each step, and the media.

Gold and predicted boxes are in original pixels, as the run's own reward read them.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mmr1.boxes import Box, Size, SpaceName, is_box, to_original
from mmr1.report.colours import COLOURS
from mmr1.report.findings import StepFacts, findings, given_answer, loops
from mmr1.report.run_reader import Run, flatten
from mmr1.report.thumbnails import Medium, Picture
from mmr1.rewards.builtin.iou import gold_boxes
from mmr1.rewards.item import BadGoldError
from mmr1.rewards.kind import reward_of_task
from mmr1.rewards.reading.boxes import read_boxes
from mmr1.rewards.reading.extract import extract_answer
from mmr1.vision.families.registry import COORDINATES

DIGITS = 6
"""Significant digits of a number in the page."""


def summarise(runs: Sequence[Run], facts: Sequence[Mapping[int, StepFacts]]) -> dict[str, Any]:
    """The summary at the top of the page: everything but rollouts and media.

    ``facts`` are those of each run's steps, as far as they have been read.
    """
    return {
        "runs": [_summary(run, of_run) for run, of_run in zip(runs, facts, strict=True)],
        "colours": COLOURS,
    }


def _summary(run: Run, facts: Mapping[int, StepFacts]) -> dict[str, Any]:
    metrics = run.metrics()
    config = flatten(run.config)
    limit = config.get("rollout.max_response_length")
    return {
        "name": run.name,
        "config": {key: _short(value) for key, value in config.items()},
        "metrics": {k: [_short(v) for v in column] for k, column in metrics.items()},
        "findings": [finding.as_json() for finding in findings(metrics, facts, limit)],
        "steps": run.steps(),
        "evaluation": run.evaluation(),
        "faults": run.faults(),
        "quarantined": run.quarantined(),
        "checkpoints": run.checkpoints(),
    }


def _short(value: Any) -> Any:
    """Rounded numbers; NaN and infinities become None."""
    if isinstance(value, float):
        return float(f"{value:.{DIGITS}g}") if math.isfinite(value) else None
    return value


def media_of(run: Run, rows: Iterable[Mapping[str, Any]]) -> dict[str, Medium]:
    """The media of rollouts by digest, each once, those that tools showed included."""
    return {m["digest"]: _medium(run, m) for row in rows for m in _media_of_row(row)}


def _media_of_row(row: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    yield from row["media"]
    for completion in row["completions"]:
        for turn in completion.get("turns", ()):
            yield from turn["media"]


def _medium(run: Run, medium: Mapping[str, Any]) -> Medium:
    """A medium with its sampling options: its own, or else those of the run."""
    video = (run.config.get("data") or {}).get("video") or {}
    options = medium.get("options") or {}
    defaults = {key: video.get(key) for key in ("fps", "max_frames")}
    run_options = (
        {} if "nframes" in options else {k: v for k, v in defaults.items() if v is not None}
    )
    file = run.media_file(medium["path"] or "")
    return Medium(medium["digest"], medium["kind"], file, {**run_options, **options})


def rollout_groups(
    run: Run, rows: Iterable[Mapping[str, Any]], picture: Callable[[str], Picture]
) -> list[dict[str, Any]]:
    """The prompts of a step for the page, with the boxes of golds and completions.

    ``picture`` returns a medium's thumbnail by its digest.
    """
    reader = box_reader(run.config)
    return [_group(row, reader, picture) for row in rows]


def _group(
    row: Mapping[str, Any], reader: BoxReader, picture: Callable[[str], Picture]
) -> dict[str, Any]:
    group = {
        **{key: row[key] for key in ("id", "prompt", "answer", "task")},
        "media": [medium["digest"] for medium in row["media"]],
        "completions": [_completion(c) for c in row["completions"]],
    }
    if reader.applies(row) and reader.image < len(row["media"]):
        medium = row["media"][reader.image]
        original = _original_size(picture(medium["digest"]))
        seen_size = tuple(medium["seen"]) if medium.get("seen") else None
        group["image"] = reader.image
        group["gold"] = reader.gold(row)
        for completion in group["completions"]:
            completion["boxes"] = reader.predicted(completion["text"], original, seen_size)
    return group


def _completion(completion: Mapping[str, Any]) -> dict[str, Any]:
    """A completion for the page; of a conversation also its turns, with the digests of pictures.

    ``given`` is its answer, ``loops`` says that it repeats itself.
    """
    shown = {k: _short(v) for k, v in completion.items()}
    text = completion["text"]
    shown |= {"given": given_answer(text), "loops": loops(text)}
    if "turns" in completion:
        shown["turns"] = [
            {**turn, "media": [m["digest"] for m in turn["media"]]} for turn in completion["turns"]
        ]
    return shown


def _original_size(picture: Picture) -> tuple[int, int] | None:
    return None if "missing" in picture else (picture["width"], picture["height"])


DRAWN = 50
"""Boxes of one completion that are drawn at most: a policy may write hundreds."""


@dataclass(frozen=True, slots=True)
class BoxReader:
    """Reads boxes with the options of a run's ``iou`` function.

    Attributes:
        always: Every prompt of the run is about boxes, whatever its task says.
        options: ``space``, ``extract`` and ``image`` of the function.
        model_space: Space of the model's boxes, as its family declares it.
    """

    always: bool
    options: Mapping[str, Any]
    model_space: SpaceName = "original"

    def applies(self, row: Mapping[str, Any]) -> bool:
        """True for prompts about boxes."""
        return self.always or reward_of_task(row.get("task")) == "iou"

    @property
    def image(self) -> int:
        """The index of the prompt's image that the boxes are in."""
        return int(self.options.get("image", 0))

    def gold(self, row: Mapping[str, Any]) -> list[Box]:
        """The gold boxes; none where the answer is not a list of boxes."""
        try:
            return gold_boxes(row.get("answer"))
        except BadGoldError:
            return []

    def predicted(self, text: str, original: Size | None, seen: Size | None) -> list[Box]:
        """The boxes of a completion, those that have an area."""
        space = self.options.get("space", "model")
        space = self.model_space if space == "model" else space
        answer = extract_answer(text, self.options.get("extract", "auto"))
        boxes = read_boxes(answer or "") or []
        try:
            predicted = [to_original(box, space, original, seen) for box in boxes[:DRAWN]]
        except ValueError:  # a size that the conversion needs was not kept by this run
            return []
        return [box for box in predicted if is_box(box)]


def box_reader(config: Mapping[str, Any]) -> BoxReader:
    """The reader for a run with this configuration."""
    rewards = config.get("rewards") or {}
    settings = {str((reward or {}).get("type") or name): reward for name, reward in rewards.items()}
    space = COORDINATES.get(_model_type(config), "original")
    if "iou" in settings:
        return BoxReader(True, settings["iou"], space)
    of_auto = (settings.get("auto") or {}).get("settings") or {}
    return BoxReader(False, of_auto.get("iou", {}), space)


def _model_type(config: Mapping[str, Any]) -> str:
    """Return the type of the run's model; an empty text if its folder is gone."""
    model = config.get("model")
    path = model.get("path") if isinstance(model, Mapping) else None
    file = Path(str(path)) / "config.json"
    try:
        return str(json.loads(file.read_text()).get("model_type"))
    except (OSError, ValueError, AttributeError):
        return ""
