"""Rows in the form of an original's data, generated here, with pictures of many sizes."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import av
import numpy as np
from PIL import Image

Row = dict[str, Any]
_NOUNS = ("cubes", "red lamps", "birds", "letters (a, b)", "angles of {x}", "chairs & tables")
_TAILS = ("", "?", " Answer shortly.", "\nLook closely!", "  Why? ", " 多少个？")
_OPTIONS = ["A. left", "B. right", "C. up", "D. down"]
KINDS = ("multiple choice", "numerical", "OCR", "free-form", "regression")


def picture(folder: Path, number: int, draw: random.Random) -> tuple[str, tuple[int, int]]:
    """Write a picture; returns its file name, width and height."""
    size = draw.randint(28, 1400), draw.randint(28, 1400)
    if max(size) / min(size) > 100:
        size = (size[0], size[0])
    colours = Image.frombytes("RGB", (16, 16), draw.randbytes(16 * 16 * 3))
    colours.resize(size, Image.Resampling.BICUBIC).save(folder / f"{number}.png", compress_level=1)
    return f"{number}.png", size


def clip(folder: Path) -> Path:
    """A file with a video of 20 different frames; the same one each time."""
    path = folder / "clip.mp4"
    if not path.exists():
        with av.open(str(path), "w") as container:
            stream = container.add_stream("libx264", rate=10)
            stream.width = stream.height = 64
            for shade in range(20):
                picture = np.full((64, 64, 3), 12 * shade, np.uint8)
                picture[shade : shade + 30, 2 * shade : 2 * shade + 20] = (200, 90, 40)
                container.mux(stream.encode(av.VideoFrame.from_ndarray(picture, format="rgb24")))
            container.mux(stream.encode())
    return path


def question(number: int, draw: random.Random) -> str:
    """A text with what templates could trip over."""
    return f"How many {draw.choice(_NOUNS)} are there, no. {number}{draw.choice(_TAILS)}"


def r1_v(folder: Path, number: int, draw: random.Random) -> Row:
    answer = draw.randint(0, 20)
    return {
        "image": picture(folder, number, draw)[0],
        "problem": question(number, draw),
        "solution": f"<answer> {answer} </answer>",
    }


def open_r1_video(folder: Path, number: int, draw: random.Random) -> Row:
    return {
        "video": clip(folder).name,
        "problem": "\n".join([question(number, draw), *_OPTIONS]),
        "solution": f"<answer> {draw.choice('ABCD')} </answer>",
    }


def vlm_r1(folder: Path, number: int, draw: random.Random) -> Row:
    name, (width, height) = picture(folder, number, draw)
    left, top = draw.randint(0, width // 2), draw.randint(0, height // 2)
    box = [left, top, draw.randint(left + 8, width), draw.randint(top + 8, height)]
    asked = f"Where are the {draw.choice(_NOUNS)}{draw.choice(_TAILS)}"
    turns = [
        {"from": "human", "value": f"<image>{asked}"},
        {"from": "gpt", "value": f"<answer> {box} </answer>"},
    ]
    return {"id": number, "image": name, "conversations": turns}


def video_r1(folder: Path, number: int, draw: random.Random) -> Row:
    kind, shown = KINDS[number % len(KINDS)], number % 3 > 0
    answers = {
        "multiple choice": draw.choice("ABCD"), "numerical": str(draw.choice((3, 4.25, -7))),
        "OCR": "stop here", "free-form": "a cat runs home",
        "regression": str(round(draw.uniform(1, 9), 2)),
    }  # fmt: skip
    return {
        "problem": question(number, draw),
        "data_type": "image" if shown else "video",
        "problem_type": kind,
        "options": _OPTIONS if kind == "multiple choice" else [],
        "solution": f"<answer>{answers[kind]}</answer>",
        "path": f"./{picture(folder, number, draw)[0] if shown else clip(folder).name}",
    }


def easyr1(folder: Path, number: int, draw: random.Random) -> Row:
    name = picture(folder, number, draw)[0]
    return {
        "images": [name],
        "problem": f"<image>{question(number, draw)}",
        "answer": str(draw.randint(0, 20)),
    }


def write(folder: Path, make: Callable[[Path, int, random.Random], Row], count: int) -> list[Row]:
    """Write rows, and ``rows.jsonl`` with them; the same ones each time."""
    folder.mkdir(parents=True, exist_ok=True)
    draw = random.Random(0)
    rows = [make(folder, number, draw) for number in range(count)]
    lines = [json.dumps(row, ensure_ascii=False) + "\n" for row in rows]
    (folder / "rows.jsonl").write_text("".join(lines), encoding="utf-8")
    return rows


def completions(answer: str, draw: random.Random, count: int) -> Sequence[str]:
    """Completions of many shapes: right and wrong, tagged and not, nested, twice, empty."""
    wrong = str(draw.randint(21, 99))
    shapes = (
        f"<think>Let me see.</think><answer>{answer}</answer>",
        f"<think>Let me see.</think>\n<answer> {answer} </answer>",
        f"<think>Hm.</think><answer>{wrong}</answer>",
        f"It is {answer}.",
        f"<answer>{answer}</answer>",
        f"<think>{wrong}</think><answer>{wrong}</answer><answer>{answer}</answer>",
        f"<think><think>So</think></think><answer>{answer}</answer>",
        f"Well. <think>So</think><answer>{answer}</answer>",
        f"<think>So \\boxed{{{answer}}}</think> \\boxed{{{answer}}}",
        f"<think>So</think> \\boxed{{{wrong}}} or \\boxed{{{answer}}}",
        f'<think>So</think><answer>```json\n[{{"bbox_2d": {answer}}}]\n```</answer>',
        f"<think>a\nb</think><answer>{answer}.0</answer>",
        "",
        "<think>never ends",
    )
    return [draw.choice(shapes) for _ in range(count)]
