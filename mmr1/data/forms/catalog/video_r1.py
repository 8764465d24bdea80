"""Video-R1: problems of several types about a video or a picture."""

from __future__ import annotations

import json
from typing import Any

from mmr1.data.forms.answers import inside_answer, tagged_answer
from mmr1.data.forms.assemble import assemble
from mmr1.data.forms.form import Form, Place, Row
from mmr1.data.forms.option_columns import options_of
from mmr1.data.forms.options import Options
from mmr1.rewards.plugins.columns import ROW
from mmr1.types import Sample

VIDEO_R1_TASKS = {
    "multiple choice": "choice",
    "numerical": "numeric",
    "ocr": "ocr",
    "free-form": "rouge",
    "open-ended": "rouge",
    "regression": "regression",
    "temporal grounding": "tiou",
    "spatial-temporal grounding": "tiou",
}


def read(row: Row, place: Place) -> Sample:
    """``problem_type`` gives the task; ``process`` is the reasoning of a demonstration."""
    kind = str(row.get("problem_type", "")).lower()
    if kind not in VIDEO_R1_TASKS:
        raise ValueError(f"problem_type '{kind}' has no verifiable answer of one kind")
    task = VIDEO_R1_TASKS[kind]
    options, columns = options_of(row, inside_answer(row["solution"]))
    question = row["problem"] if options is None else _asked(row["problem"], options)
    turns = [("user", question)]
    if row.get("process"):
        turns.append(("assistant", f"{row['process']}{row['solution']}"))
    media = {"images" if row["data_type"] == "image" else "videos": row["path"]}
    if row.get("image_path"):  # a question about a video and an image
        media["images"] = row["image_path"]
        turns[0] = ("user", f"<video>{question}" if "<image" in question else question)
    answer: Any = tagged_answer(row["solution"])
    extra = {} if options is None else {"options": options.for_reward}
    if task == "choice" and options is not None:
        answer = options.gold(answer)
    if task == "tiou":  # {"time": [s, e], "boxes": {second: box}}
        grounding = json.loads(answer)
        answer, extra = grounding["time"], {"boxes": grounding.get("boxes")}
    # The columns as its reward functions and its prompt read them.
    extra[ROW] = {key: row[key] for key in ("problem_type", "solution", "data_type")}
    return assemble(
        row, place, turns, answer=answer, task=task, meta=extra,
        used=("problem", "solution", "process", "path", "problem_type", "data_type", "options",
              *columns),
        untagged=True, **media,
    )  # fmt: skip


def _asked(problem: str, options: Options) -> str:
    """As Video-R1 asks: its options on lines of their own, after a head and before a newline."""
    asked = options.ask(problem)
    if asked == problem:  # it lists them itself
        return problem
    return f"{problem}Options:{asked.removeprefix(problem)}\n"


FORM = Form(
    name="video_r1",
    written_by="Video-R1, EasyVideoR1",
    keys=("problem", "solution", "path", "data_type"),
    read=read,
    example={
        "problem": "Which animal runs?",
        "data_type": "video",
        "problem_type": "multiple choice",
        "options": ["A. cat", "B. ant"],
        "solution": "<answer>A</answer>",
        "path": "clip.mp4",
    },
)
