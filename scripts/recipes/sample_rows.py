"""Generate a few rows in the format of a dataset, for ``--smoke`` of the recipes.

    python scripts/recipes/sample_rows.py RECIPE/NAME CONVERTER FOLDER

The images are simple: dots to count, a rectangle to find, a moving square. The keys are those of
the real dataset.
"""

from __future__ import annotations

import base64
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image, ImageDraw

from datasets_prep.generators.video import moving_square, write_mp4

ROWS = 8
SIDE = 56
Row = dict[str, Any]


def dots(folder: Path, number: int) -> tuple[str, int]:
    """An image with 1 to 4 dots: its file name and their number."""
    count = 1 + number % 4
    image = Image.new("RGB", (SIDE, SIDE), (20, 20, 40))
    for index in range(count):
        x, y = 4 + 28 * (index % 2), 4 + 28 * (index // 2)
        ImageDraw.Draw(image).ellipse((x, y, x + 18, y + 18), fill=(230, 200, 80))
    name = f"dots-{number}.png"
    image.save(folder / name)
    return name, count


def rectangle(folder: Path, number: int) -> tuple[str, list[int]]:
    """An image with one rectangle: its file name and the box."""
    box = [5 + number, 10, 30 + number, 40]
    image = Image.new("RGB", (SIDE, SIDE), (20, 20, 40))
    ImageDraw.Draw(image).rectangle((box[0], box[1], box[2] - 1, box[3] - 1), fill=(80, 200, 120))
    name = f"box-{number}.png"
    image.save(folder / name)
    return name, box


def video(folder: Path, number: int) -> tuple[str, str]:
    """A video of a moving square: its file name and the letter of the direction."""
    directions = ["left", "right", "up", "down"]
    frames, fps = moving_square(np.random.default_rng(number), directions[number % 4])
    name = f"video-{number}.mp4"
    write_mp4(folder / name, frames, fps)
    return name, "ABCD"[number % 4]


WAYS = ["A. left", "B. right", "C. up", "D. down"]


def r1_v(folder: Path, number: int) -> Row:
    image, count = dots(folder, number)
    problem = "How many dots are there?"
    return {"image": image, "problem": problem, "solution": f"<answer> {count} </answer>"}


def r1_v_eval(folder: Path, number: int) -> Row:
    image, count = dots(folder, number)
    return {"image_path": image, "question": "How many dots are there?", "ground_truth": count}


def geometry3k(folder: Path, number: int) -> Row:
    image, count = dots(folder, number)
    return {"images": [image], "problem": "<image>Find x.", "answer": str(count)}


def rec(folder: Path, number: int) -> Row:
    image, box = rectangle(folder, number)
    asked = {"from": "human", "value": "<image>Give the bounding box of: the green rectangle"}
    said = {"from": "gpt", "value": json.dumps(box)}
    return {"id": number, "image": image, "conversations": [asked, said]}


def rec_eval(folder: Path, number: int) -> Row:
    image, box = rectangle(folder, number)
    return {
        "image": image, "problem": "Give the bounding box of: the green rectangle",
        "solution": [float(side) for side in box], "width": SIDE, "height": SIDE,
        "normalized_solution": [side * 1000 // SIDE for side in box],
    }  # fmt: skip


def lmm_r1(folder: Path, number: int) -> Row:
    image, count = dots(folder, number)
    content = [
        {"type": "text", "text": "How many?"},
        {"type": "image", "image": image},
    ]
    message = json.dumps([{"role": "user", "content": content}])
    return {"question": "How many?", "answer": f"$\\boxed{{{count}}}$", "message": message}


def lmm_r1_text(folder: Path, number: int) -> Row:
    message = json.dumps([{"role": "user", "content": f"What is {number} + 2?"}])
    answer = f"$\\boxed{{{number + 2}}}$"
    return {"question": f"What is {number} + 2?", "answer": answer, "message": message}


def r1_onevision(folder: Path, number: int) -> Row:
    name, count = dots(folder, number)
    thought = f"<think>I see {count} dots.</think>\n\n<answer>{count}</answer>"
    return {
        "id": str(number),
        "image": base64.b64encode((folder / name).read_bytes()).decode(),
        "conversations": [
            {"from": "human", "value": "<image>How many dots are there?"},
            {"from": "gpt", "value": thought},
        ],
    }


def open_r1_video(folder: Path, number: int) -> Row:
    name, letter = video(folder, number)
    problem = "Which way does the square move? " + " ".join(WAYS)
    return {"video": name, "problem": problem, "solution": f"<answer>{letter}.</answer>"}


def video_r1(folder: Path, number: int) -> Row:
    shared = {"problem_id": number, "process": "", "data_source": "drawn"}
    if number % 2:
        name, count = dots(folder, number)
        return {
            **shared, "problem": "How many dots are there?", "data_type": "image", "path": name,
            "problem_type": "numerical", "options": [], "solution": f"<answer>{count}</answer>",
        }  # fmt: skip
    name, letter = video(folder, number)
    return {
        **shared, "problem": "Which way does the square move?", "data_type": "video", "path": name,
        "problem_type": "multiple choice", "options": WAYS,
        "solution": f"<answer>{letter}</answer>",
    }  # fmt: skip


def vsi_bench(folder: Path, number: int) -> Row:
    return {**video_r1(folder, number), "original_question_type": "object_counting"}


def mathvista(folder: Path, number: int) -> Row:
    image, count = dots(folder, number)
    return {
        "pid": str(number), "question": "How many dots are there?", "image": image, "choices": None,
        "unit": None, "precision": None, "answer": str(count), "answer_type": "integer",
        "question_type": "free_form", "query": "",
    }  # fmt: skip


def mathverse(folder: Path, number: int) -> Row:
    image, count = dots(folder, number)
    return {
        "sample_index": str(number), "problem_version": "Text Dominant", "image": image,
        "question": "How many dots are there?", "answer": str(count), "question_type": "free-form",
    }  # fmt: skip


def math_vision(folder: Path, number: int) -> Row:
    image, count = dots(folder, number)
    return {
        "id": str(number), "question": "How many dots are there?\n<image1>", "options": [],
        "image": image, "answer": str(count), "level": 1, "subject": "counting",
    }  # fmt: skip


def r1_onevision_bench(folder: Path, number: int) -> Row:
    name, count = dots(folder, number)
    return {
        "image": base64.b64encode((folder / name).read_bytes()).decode(), "answer": "AB"[count % 2],
        "question": "How many dots are there?\nChoices:\nA. an even number\nB. an odd number",
        "choices": "", "level": "Junior High School", "category": "Physics",
    }  # fmt: skip


def video_r1_cot(folder: Path, number: int) -> Row:
    return {**video_r1(folder, number), "process": "<think>I look at each frame.</think>"}


def mm_eureka(folder: Path, number: int) -> Row:
    image, count = dots(folder, number)
    turns = [{"role": "user", "content": "<image>How many dots are there?"}]
    return {"id": str(number), "conversations": turns, "answer": str(count), "image_urls": [image]}


def deepeyes(folder: Path, number: int) -> Row:
    """A row in the form of DeepEyes' data: the system prompt describes a tool."""
    image, count = dots(folder, number)
    tool = {"name": "image_zoom_in_tool", "parameters": {"bbox_2d": "a box", "label": "its name"}}
    system = {"role": "system", "content": f"# Tools\n<tools>{json.dumps(tool)}</tools>"}
    asked = {"role": "user", "content": "<image>\nHow many dots are there?"}
    return {
        "data_source": "vstar", "prompt": [system, asked], "images": [image], "ability": "vqa",
        "env_name": "visual_toolbox_v2", "extra_info": {"question": "How many dots are there?"},
        "reward_model": {"style": "model", "ground_truth": str(count)},
    }  # fmt: skip


def pair(folder: Path, number: int) -> Row:
    image, count = dots(folder, number)
    chosen, rejected = (f"There are {n} dots." for n in (count, count + 1))
    question = "How many dots are there?"
    return {"image": image, "question": question, "chosen": chosen, "rejected": rejected}


def visualprm(folder: Path, number: int) -> Row:
    image, count = dots(folder, number)
    steps = [
        {"step": "I look at the image.", "score": 1.0},
        {"step": f"I count {count + 1} dots.", "score": 0.25},
    ]
    return {
        "image": image, "question": "<image>\nHow many dots are there?", "answer": str(count),
        "response": "", "steps_with_score": steps,
    }  # fmt: skip


def text(folder: Path, number: int) -> Row:
    return {"problem": f"What is {number} + 2?", "answer": str(number + 2)}


# By the recipe and the name that it gives the dataset, by the name, or by the converter.
MAKERS: dict[str, Callable[[Path, int], Row]] = {
    "r1_v": r1_v,
    "r1_v_eval": r1_v_eval,
    "easyr1": geometry3k,
    "vlm_r1": rec,
    "rec": rec_eval,
    "lmm_r1": lmm_r1,
    "text": lmm_r1_text,
    "demonstrations": r1_onevision,
    "open_r1_video/train": open_r1_video,
    "video_r1": video_r1,
    "vsi_bench": vsi_bench,
    "mathvista": mathvista,
    "mathverse": mathverse,
    "math_vision": math_vision,
    "r1_onevision_bench": r1_onevision_bench,
    "cot": video_r1_cot,
    "mm_eureka": mm_eureka,
    "pairs": pair,
    "visualprm": visualprm,
    "text_math/train": text,
    "verl": deepeyes,
}


def main(name: str, converter: str, folder: Path) -> None:
    folder.mkdir(parents=True)
    make = next(MAKERS[key] for key in (name, name.partition("/")[2], converter) if key in MAKERS)
    rows = [make(folder, number) for number in range(ROWS)]
    if converter in ("mathvista", "mathverse"):
        (folder / "testmini.json").write_text(json.dumps(rows))
        return
    lines = "".join(json.dumps(row) + "\n" for row in rows)
    (folder / ("test.jsonl" if converter == "math_vision" else f"{converter}.jsonl")).write_text(
        lines
    )


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], Path(sys.argv[3]))
