"""Records that training or the rewards cannot use do not validate."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from datasets_prep.validate import validate
from tests.data.form_rows import SIZE, write_media

IMAGE = {"type": "image", "path": "a.png", "width": SIZE[0], "height": SIZE[1]}
VIDEO = {"type": "video", "path": "clip.mp4"}  # 20 frames, 2 seconds
TEXT = {"type": "text", "text": "What?"}
REPLY = {"role": "assistant", "content": "This."}


def row(*content: dict[str, Any], **keys: Any) -> dict[str, Any]:
    messages = [{"role": "user", "content": list(content) or [TEXT]}]
    return {"version": 1, "id": "x", "messages": messages, **keys}


def problems(folder: Path, *rows: dict[str, Any]) -> list[str]:
    write_media(folder)
    numbered = [{**r, "id": f"{r['id']}{i}"} for i, r in enumerate(rows)]
    (folder / "r.jsonl").write_text("".join(json.dumps(r) + "\n" for r in numbered))
    return [what for _, what in validate(folder / "r.jsonl")[1]]


def box(*numbers: float, **keys: Any) -> dict[str, Any]:
    return row(IMAGE, TEXT, answer=[list(numbers)], task="iou", **keys)


def span(first: float, last: float, **options: Any) -> dict[str, Any]:
    return row({**VIDEO, "options": options}, TEXT, answer=[first, last], task="tiou")


def sampled(**options: Any) -> dict[str, Any]:
    return row({**VIDEO, "options": options}, TEXT, answer="1", task="math")


@pytest.mark.parametrize(
    ("record", "message"),
    [
        (box(5, 5, 90, 20), "leaves the image of 40 x 30"),
        (box(0.1, 0.2, 0.5, 0.9), r"are of 0 to 1; they fit as 0 to 1; .* in pixels .* 40 x 30"),
        (row(TEXT, answer=[[1, 2, 3, 4]], task="iou"), "about an image, and the record has none"),
        (span(0.5, 9.0), "ends after the video, which shows 2.00 s"),
        (span(0.5, 1.9, start=1.0, end=1.6), "ends after the video, which shows 0.60 s"),
        (row(TEXT, answer=[0, 1], task="tiou"), "is about a video, and the record has none"),
        (row(answer="5", task="maths"), r"unknown task 'maths' \(did you mean 'math'\?\)"),
        (row(answer="5"), "no task: the reward 'auto' scores an answer by its record's task"),
        (span(0.5, 2.9), "ends after the video, which shows 2.00 s"),
        (row(task="math"), "no gold: the task 'math' needs an 'answer'"),
        (row({"type": "text", "text": " "}, answer="5", task="math"), "no question"),
        (sampled(nframes=100000), "clip.mp4: too few or too many frames requested: there are 20"),
        (sampled(frames=4), r"unknown media option 'frames' \(did you mean 'nframes'\?\)"),
        (sampled(fps="2"), "the media option fps='2' is not a number"),
        (sampled(nframes=2.5), "nframes=2.5 is not a whole number"),
        (sampled(start=1.5, end=0.5), "no two frames between 1.5 s and 0.5 s"),
        (
            row({**IMAGE, "options": {"fps": 2}}, TEXT, answer="1", task="math"),
            "the media option 'fps' is one of videos",
        ),
        (
            row({**IMAGE, "options": {"min_pixels": 9, "max_pixels": 4}}, TEXT),
            "min_pixels=9 is above max_pixels=4",
        ),
        (
            row(answer="C", task="choice", meta={"options": ["x", "y"]}),
            "names none of the options",
        ),
    ],
)  # fmt: skip
def test_what_a_task_lacks_is_a_problem(tmp_path: Path, record: Any, message: str) -> None:
    (problem,) = problems(tmp_path, record)
    assert re.search(message, problem), problem


def test_what_can_be_used_is_none(tmp_path: Path) -> None:
    demonstration = row(task="math")
    demonstration["messages"].append(REPLY)
    pair = row(task="math", meta={"chosen": "a", "rejected": "b"})
    sound = [
        box(5, 5, 40, 30), box(0, 0, 1.5, 1), span(0.5, 2.0), span(0.1, 0.5, start=1.0, end=1.6),
        demonstration, pair, row(IMAGE, answer="5", task="math"),
        sampled(nframes=4, min_pixels=3136), sampled(fps=2.0, start=0, end=1.5),
    ]  # fmt: skip
    assert problems(tmp_path, *sound) == []
