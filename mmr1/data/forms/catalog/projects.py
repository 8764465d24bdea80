"""Rows of R1 projects: R1-V, LMM-R1, Video-R1, VLM-R1 and its referring expressions."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

from mmr1.data.forms.assemble import (
    ANSWER,
    assemble,
    assemble_question,
    inside_answer,
    tagged_answer,
)
from mmr1.data.forms.boxes import gold_boxes, grounded, read_gold
from mmr1.data.forms.chat import read_chat, with_system
from mmr1.data.forms.columns import first_of, images_of, videos_of
from mmr1.data.forms.form import Form, Place, Row, Turns
from mmr1.data.forms.options import Options, options_of
from mmr1.rewards.plugins.columns import ROW
from mmr1.types import Sample


# R1-V: a problem, and its answer inside the tag of the solution.
def _read_r1_v(row: Row, place: Place) -> Sample:
    """Boxes in the tag make a question about places, with IoU as its reward."""
    answer = tagged_answer(row["solution"])
    sample = assemble_question(
        row, place, row["problem"], answer, images=images_of(row), videos=videos_of(row),
        task="math", used=("problem", "solution"),
    )  # fmt: skip
    # The columns as its reward functions read them.
    own = {ROW: {key: row[key] for key in ("problem", "solution")}}
    sample = replace(sample, meta={**sample.meta, **own})
    if not sample.media or sample.task == "choice":
        return sample
    boxes = gold_boxes(row, answer, row["problem"])
    return sample if boxes is None else grounded(sample, boxes)


R1_V = Form(
    name="r1_v",
    written_by="R1-V, open-r1-multimodal, Open-R1-Video",
    keys=("problem", "solution"),
    read=_read_r1_v,
)


# R1-V, evaluation rows: a question, its picture and the truth.
def _read_r1_v_eval(row: Row, place: Place) -> Sample:
    """A whole number is a count."""
    answer = row["ground_truth"]
    return assemble(
        row, place, [("user", row["question"])], images=row["image_path"], answer=answer,
        task="count" if isinstance(answer, int) else "math", untagged=True,
        used=("question", "ground_truth"),
    )  # fmt: skip


R1_V_EVAL = Form(
    name="r1_v_eval",
    written_by="R1-V, evaluation",
    keys=("image_path", "question", "ground_truth"),
    read=_read_r1_v_eval,
)


# LMM-R1 and MM-Eureka: a conversation as a JSON text, which names its pictures.
def _read_lmm_r1(row: Row, place: Place) -> Sample:
    """The question is in the conversation; the column ``question`` repeats it."""
    chat = read_chat(row["message"])
    return assemble(
        row, place, chat.turns, images=chat.images(row.get("image_urls")),
        videos=chat.videos(None), answer=row["answer"], task="math",
        used=("message", "answer", "question"),
    )  # fmt: skip


LMM_R1 = Form(
    name="lmm_r1",
    written_by="LMM-R1, MM-Eureka",
    keys=("message", "answer"),
    read=_read_lmm_r1,
)


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


# Video-R1: problems of several types about a video or a picture.
def _read_video_r1(row: Row, place: Place) -> Sample:
    """``problem_type`` gives the task; ``process`` is the reasoning of a demonstration."""
    kind = str(row.get("problem_type", "")).lower()
    if kind not in VIDEO_R1_TASKS:
        raise ValueError(f"problem_type '{kind}' has no verifiable answer of one kind")
    task = VIDEO_R1_TASKS[kind]
    options, columns = options_of(row, inside_answer(row["solution"]))
    question = row["problem"] if options is None else _asked(row["problem"], options)
    turns = [("user", question)]
    if row.get("process"):
        turns.append(("assistant", f"{row['process']}\n{row['solution']}"))
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
    """Video-R1's question: its options on separate lines, after a head and before a newline."""
    asked = options.ask(problem)
    if asked == problem:  # it lists them itself
        return problem
    return f"{problem}Options:{asked.removeprefix(problem)}\n"


VIDEO_R1 = Form(
    name="video_r1",
    written_by="Video-R1, EasyVideoR1",
    keys=("problem", "solution", "path", "data_type"),
    read=_read_video_r1,
)


_SHORT = 200
"""Characters; a longer reply without the tag is a demonstration and holds no gold answer."""


# VLM-R1, LLaVA, R1-Onevision: ``conversations`` of turns with ``from`` and ``value``.
def _read_vlm_r1(row: Row, place: Place) -> Sample:
    """The reply is the gold answer if it is short or tagged; a reply of boxes becomes boxes."""
    chat = read_chat(row["conversations"])
    turns = with_system(chat.turns, row.get("system"))
    reply = turns[-1][1] if turns and turns[-1][0] == "assistant" else ""
    answer = row.get("answer", _gold(reply))
    images = chat.images(first_of(row, ("image_urls", "image", "images")))
    task = None if answer is None else "math"

    def sample(turns: Turns, answer: Any) -> Sample:
        return assemble(
            row, place, turns, images=images, videos=chat.videos(videos_of(row)), answer=answer,
            task=task, used=("conversations", "answer", "system"), untagged=True,
            meta={ROW: _as_loaded(turns, reply)} if reply and task else None,
        )  # fmt: skip

    if images and answer is not None:
        question = "".join(text for role, text in turns if role == "user")
        if (boxes := gold_boxes(row, answer, question)) is not None:
            return grounded(sample(turns[:-1] if reply else turns, None), boxes)
    return sample(turns, answer)


def _as_loaded(turns: Turns, reply: str) -> dict[str, str]:
    """The columns that VLM-R1's own loader makes of a row, which its reward functions read."""
    text = reply.replace("<answer>", "").replace("</answer>", "").strip()
    problem = next((text for role, text in turns if role == "user"), "")
    return {
        "problem": problem.replace("<image>", ""),
        "solution": f"<answer> {text} </answer>",
        "accu_reward_method": "default",
    }


def _gold(reply: str) -> str | None:
    if ANSWER.search(reply):
        return str(inside_answer(reply))
    return reply if 0 < len(reply) <= _SHORT else None


VLM_R1 = Form(
    name="vlm_r1",
    written_by="VLM-R1, LLaVA, R1-Onevision",
    keys=("conversations",),
    read=_read_vlm_r1,
)


# VLM-R1 referring expressions: the solution is a box in pixels of the original image.
def _read_rec(row: Row, place: Place) -> Sample:
    """``bbox_list`` and ``normalized_solution`` repeat the box in other spaces."""
    boxes = read_gold(row["solution"])
    if boxes is None:
        shown = str(row["solution"])[:60]
        raise ValueError(f"the solution {shown!r} is not a box [x1, y1, x2, y2]")
    sample = assemble(
        row, place, [("user", row["problem"])], images=row["image"], untagged=True,
        used=("problem", "solution", "width", "height", "bbox_list", "normalized_solution"),
    )  # fmt: skip
    stated = row.get("width") is not None and row.get("height") is not None
    return grounded(sample, boxes, size=(int(row["width"]), int(row["height"])) if stated else None)


def _is_box(row: Row) -> bool:
    return isinstance(row["solution"], list) or row.get("width") is not None


REC = Form(
    name="rec",
    written_by="VLM-R1, referring expressions",
    keys=("problem", "solution", "image"),
    read=_read_rec,
    fits=_is_box,
)
