"""Forms that users bring: chats that hold their media, MMMU, VLMEvalKit, ms-swift, hub rows."""

from __future__ import annotations

import base64
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from mmr1.data.sources import load_samples
from tests.data.form_rows import read, write_media, written


@pytest.fixture
def root(tmp_path: Path) -> Path:
    write_media(tmp_path)
    return tmp_path


def data_url(path: Path) -> str:
    return f"data:image/png;base64,{base64.b64encode(path.read_bytes()).decode()}"


PART = [
    {"type": "image", "image": "a.png"},
    {"type": "image", "path": "a.png"},
    {"type": "image", "image": {"bytes": None, "path": "a.png"}},
    {"type": "image_url", "image_url": {"url": "a.png", "detail": "high"}},
    {"type": "image_url", "image_url": "a.png"},
    {"type": "image_url", "value": "a.png"},
]


@pytest.mark.parametrize("part", PART)
@pytest.mark.parametrize("column", ["messages", "prompt", "verl", "openrlhf"])
def test_parts_that_hold_their_picture(root: Path, part: dict[str, Any], column: str) -> None:
    content = [{"type": "text", "text": "Look: "}, part, {"type": "text", "text": " Who?"}]
    messages = [{"role": "user", "content": content}]
    row: dict[str, Any] = {
        "messages": {"messages": messages},
        "prompt": {"prompt": messages, "answer": "1"},
        "verl": {"prompt": messages, "reward_model": {"ground_truth": "1"}},
        "openrlhf": {"prompt": messages, "label": "1"},
    }[column]
    assert written(read(row, root)) == ["user: Look: [a.png] Who?"]


def test_parts_with_bytes_options_and_videos(root: Path) -> None:
    picture = (root / "b.png").read_bytes()
    content = [
        {"type": "video", "video": "clip.mp4", "fps": 1.0, "video_start": 0.5, "max_pixels": 5000},
        {"type": "image_url", "image_url": {"url": data_url(root / "b.png")}},
        {"type": "image", "image": Image.open(root / "b.png")},
        {"type": "image", "image": {"bytes": picture, "path": "/theirs/x.png"}, "min_pixels": 3136},
        {"type": "text", "text": "What?", "image": None},
    ]
    sample = read({"messages": [{"role": "user", "content": content}]}, root)
    assert written(sample) == ["user: [clip.mp4][bytes][bytes][bytes]What?"]
    assert sample.media[0].options == {"fps": 1.0, "start": 0.5, "max_pixels": 5000}
    assert sample.media[1].read() == sample.media[3].read() == picture
    assert sample.media[3].options == {"min_pixels": 3136}


def test_parts_and_a_column_together(root: Path) -> None:
    bare, held = {"type": "image"}, {"type": "image", "image": "a.png"}

    def row(*parts: dict[str, Any], images: list[str]) -> dict[str, Any]:
        content = [*parts, {"type": "text", "text": "?"}]
        return {"messages": [{"role": "user", "content": content}], "images": images}

    assert written(read(row(bare, held, images=["b.png"]), root)) == ["user: [b.png][a.png]?"]
    assert written(read(row(held, images=["a.png"]), root)) == ["user: [a.png]?"]
    with pytest.raises(ValueError, match=r"hold 1 image\(s\) and 1 <image> placeholder\(s\), and"):
        read(row(bare, held, images=["a.png", "b.png"]), root)


def test_parts_that_cannot_be_read(root: Path) -> None:
    for part, message in (
        ({"type": "video", "video": ["a.png", "b.png"]}, "a list of 2 frames; .* mmr1-data frames"),
        ({"type": "image", "image": "a.png", "resized_width": 9}, "'resized_width' fixes a size"),
        ({"type": "input_audio", "input_audio": {}}, "unknown content type 'input_audio'"),
        ({"type": "image", "image": "https://x.org/a.png"}, "remote media"),
    ):
        with pytest.raises(ValueError, match=message):
            read({"messages": [{"role": "user", "content": [part]}]}, root)


def test_a_prompt_that_is_a_text(root: Path) -> None:
    sample = read({"prompt": "Find x.", "image": "a.png", "answer": "5"}, root)
    assert (written(sample), sample.answer) == (["user: [a.png]Find x."], "5")
    sample = read({"prompt": "Find x.", "completion": "It is 5."}, root)
    assert written(sample) == ["user: Find x.", "assistant: It is 5."]


def test_swift_query_and_history(root: Path) -> None:
    row = {
        "system": "Be brief.", "history": [["<image>Who?", "A man."]], "query": "Old?",
        "response": "Yes.", "images": ["a.png"],
    }  # fmt: skip
    assert written(read(row, root)) == [
        "system: Be brief.", "user: [a.png]Who?", "assistant: A man.", "user: Old?",
        "assistant: Yes.",
    ]  # fmt: skip
    sample = read({"query": "1+1?", "solution": "2"}, root)
    assert (written(sample), sample.answer, sample.task) == (["user: 1+1?"], "2", "math")


def test_mmmu_pictures_by_number(root: Path) -> None:
    row: dict[str, Any] = {
        "id": "validation_Art_1", "question": "Compare <image 2> with <image 1>.",
        "options": "['<image 1>', '<image 3>']", "explanation": "", "answer": "B",
        "question_type": "multiple-choice", "image_4": None,
    }  # fmt: skip
    pictures = {f"image_{n}": {"bytes": None, "path": f"{c}.png"} for n, c in enumerate("abc", 1)}
    sample = read({**row, **pictures}, root)
    assert written(sample) == [
        "user: Compare [b.png] with [a.png].\nA. [a.png]\nB. [c.png]",
    ]  # fmt: skip
    assert (sample.answer, sample.task) == ("B", "choice")
    open_ended = {**row, **pictures, "options": "[]", "answer": "12", "question": "How many?"}
    sample = read(open_ended, root)
    assert written(sample) == ["user: [a.png][b.png][c.png]How many?"]
    assert (sample.answer, sample.task) == ("12", "math")
    with pytest.raises(ValueError, match="withheld"):
        read({**row, **pictures, "answer": "?"}, root)


def test_a_vlmevalkit_table(root: Path) -> None:
    picture = base64.b64encode((root / "a.png").read_bytes()).decode()
    (root / "t.tsv").write_text(
        "index\timage\tquestion\tA\tB\tC\tanswer\thint\tcategory\n"
        f"7\t{picture}\tWhich colour?\tred\tblue\t\tA\tLook.\tcolour\n"
        "8\t7\tAnd now?\tred\tblue\tgreen\tC\t\tcolour\n"
    )
    first, second = load_samples(root / "t.tsv")
    assert written(first) == ["user: [bytes]Look.\nWhich colour?\nA. red\nB. blue"]
    assert written(second) == ["user: [bytes]And now?\nA. red\nB. blue\nC. green"]
    assert second.media[0].read() == (root / "a.png").read_bytes()
    assert (second.answer, second.task) == ("C", "choice")
    meta = {name: value for name, value in second.meta.items() if name != "row"}
    assert meta == {"index": "8", "category": "colour", "options": ["red", "blue", "green"]}


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        (4, (4, "count")),
        (2.5, (2.5, "numeric")),
        (False, ("no", "exact")),
        ("red", ("red", "math")),
        (["red"], ("red", "math")),
    ],
)
def test_question_and_answer(root: Path, answer: Any, expected: tuple[Any, str]) -> None:
    row = {"image": "a.png", "question": "What?", "answer": answer}
    sample = read(row, root)
    assert (sample.answer, sample.task) == expected
    assert written(sample) == ["user: [a.png]What?"]
    with pytest.raises(ValueError, match="is not a single text or number"):
        read({**row, "answer": ["a", "b"]}, root)


def test_encoded_bytes_go_before_a_dead_path(root: Path) -> None:
    row = {
        "question": "Which?", "options": ["red", "blue"], "answer": "A", "image": "images/1.jpg",
        "decoded_image": {"bytes": (root / "a.png").read_bytes(), "path": None},
    }  # fmt: skip
    sample = read(row, root)
    assert (written(sample)[0], sample.answer) == ("user: [bytes]Which?\nA. red\nB. blue", "A")
