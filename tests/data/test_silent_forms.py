"""What forms once read wrong without a word: options, numbers of pictures, chats, boxes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from mmr1.data.forms.options import read_options
from mmr1.data.record import read_records
from mmr1.rewards.builtin.choice import choice
from mmr1.types import Sample
from tests.data.form_rows import read, write_media, written


def others(sample: Sample) -> dict[str, Any]:
    """The columns beside those that the form has read."""
    return {name: value for name, value in sample.meta.items() if name != "row"}


@pytest.fixture
def root(tmp_path: Path) -> Path:
    write_media(tmp_path)
    return tmp_path


# Options -----------------------------------------------------------------------------------------

SHUFFLED = {
    "problem": "Which?",
    "data_type": "video",
    "problem_type": "multiple choice",
    "options": ["C. cat", "A. ant", "B. bee"],
    "solution": "<answer>C</answer>",
    "path": "clip.mp4",
}


def test_letters_that_are_there_stay(root: Path) -> None:
    sample = read(SHUFFLED, root)
    assert written(sample) == ["user: [clip.mp4]Which?Options:\nC. cat\nA. ant\nB. bee\n"]
    assert sample.answer == "C"
    options = sample.meta["options"]
    for completion, paid in (("C", 1), ("cat", 1), ("C. cat", 1), ("A", 0), ("ant", 0)):
        assert choice(f"<answer>{completion}</answer>", "C", options=options) == paid
        # The same for whoever wrote such a list into a record by hand.
        raw = SHUFFLED["options"]
        assert choice(f"<answer>{completion}</answer>", "C", options=raw) == paid


@pytest.mark.parametrize(
    ("options", "by_letter"),
    [
        (["red", "(B) blue"], {"A": "red", "B": "blue"}),
        (["A. x", "C. y"], {"A": "x", "C": "y"}),
        (["B.x", "A.y"], {"B": "x", "A": "y"}),
        (["A.M.", "P.M."], {"A": "A.M.", "B": "P.M."}),
        (["E. coli", "yeast"], {"A": "E. coli", "B": "yeast"}),
        ("['one', 'two']", {"A": "one", "B": "two"}),
        ({"A": "one", "B": "two", "C": None}, {"A": "one", "B": "two"}),
        ([1, 2.5], {"A": "1", "B": "2.5"}),
    ],
)
def test_options_by_letter(options: Any, by_letter: dict[str, str]) -> None:
    read = read_options(options)
    assert read is not None
    assert read.by_letter == by_letter


def test_options_that_are_letters(root: Path) -> None:
    """Which letter appears first, asks MVBench; the label counts, also for the reward."""
    row = {**SHUFFLED, "options": ["A. C", "B. A", "C. T"], "solution": "<answer>A</answer>"}
    sample = read(row, root)
    options = sample.meta["options"]
    assert (sample.answer, options) == ("A", ["C", "A", "T"])
    for completion, paid in (("A", 1), ("A. C", 1), ("B", 0), ("C", 0)):
        assert choice(f"<answer>{completion}</answer>", sample.answer, options=options) == paid


def test_golds_and_options_are_checked_against_each_other(root: Path) -> None:
    for solution, options, message in (
        ("D", ["A. x", "B. y"], r"the answer 'D' is none of the options \(A\. x, B\. y\)"),
        ("B", ["A. x", "C. y"], "is none of the options"),
        ("A", ["B", "A", "C"], r"the answer 'A' is a letter and also the text of option B"),
        ("A", ["A. x", "A. y"], "two options have one letter"),
        ("A", ["x"] * 27, "27 options are more than there are letters"),
        ("A", "x or y", "the options are not a list"),
    ):
        row = {**SHUFFLED, "options": options, "solution": f"<answer>{solution}</answer>"}
        with pytest.raises(ValueError, match=message):
            read(row, root)


def test_easyr1_options_reach_the_question(root: Path) -> None:
    row = {"problem": "<image>Which?", "images": ["a.png"], "options": ["cat", "ant"]}
    sample = read({**row, "answer": "ant"}, root)
    assert written(sample) == ["user: [a.png]Which?\nA. cat\nB. ant"]
    assert (sample.answer, sample.task, others(sample)) == (
        "B",
        "choice",
        {"options": ["cat", "ant"]},
    )
    listed = {**row, "problem": "<image>Which?\n(A) cat (B) ant", "answer": "B"}
    assert written(read(listed, root)) == ["user: [a.png]Which?\n(A) cat (B) ant"]


# Numbered placeholders ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("problem", "expected"),
    [
        ("<image2> after <image1>", "[b.png] after [a.png]"),
        ("<image_2> or <image 1>?", "[b.png] or [a.png]?"),
        ("<image1><image2> Is <image1> red?", "[a.png][b.png] Is [a.png] red?"),
        ("<image> and <image 2>", "[a.png] and [b.png]"),
        ("<image>, <image>", "[a.png], [b.png]"),
    ],
)
def test_numbered_placeholders_name_their_picture(root: Path, problem: str, expected: str) -> None:
    row = {"problem": problem, "images": ["a.png", "b.png"], "answer": "1"}
    assert written(read(row, root)) == [f"user: {expected}"]
    record = {
        "version": 1, "id": "x", "images": ["a.png", "b.png"],
        "messages": [{"role": "user", "content": problem}],
    }  # fmt: skip
    assert written(read(record, root)) == [f"user: {expected}"]


@pytest.mark.parametrize(
    ("problem", "message"),
    [
        ("<image1> and <image3>", r"<image3> names the image 3, and there are 2 image\(s\)"),
        ("<image0> and <image1>", "counted from 1"),
        ("<image1> and <image1>", "the image 2 has no placeholder"),
        ("<image2> and <image>", "<image> and <image2> are mixed"),
        ("<image>", r"1 <image> placeholder\(s\) in the messages but 2 image\(s\)"),
    ],
)
def test_numbers_that_cannot_be(root: Path, problem: str, message: str) -> None:
    row = {"problem": problem, "images": ["a.png", "b.png"], "answer": "1"}
    with pytest.raises(ValueError, match=message):
        read(row, root)


# Chats -------------------------------------------------------------------------------------------


def test_list_content_with_values(root: Path) -> None:
    """LLaMA-Factory's v1 form; such texts were read as empty."""
    row = {
        "messages": [
            {"role": "system", "content": [{"type": "text", "value": "Be kind."}]},
            {"role": "user", "content": [{"type": "text", "value": "Who are you?"}]},
            {"role": "assistant", "content": [{"type": "text", "value": "A model."}]},
        ]
    }
    expected = ["system: Be kind.", "user: Who are you?", "assistant: A model."]
    assert written(read(row, root)) == expected
    empty = {"messages": [{"role": "user", "content": [{"type": "text"}]}]}
    with pytest.raises(ValueError, match="a part of the type 'text' has no 'text'"):
        read(empty, root)
    reasoning = {"messages": [{"role": "user", "content": [{"type": "reasoning", "value": "x"}]}]}
    with pytest.raises(ValueError, match="unknown content type 'reasoning'"):
        read(reasoning, root)


def test_an_empty_question_is_refused(root: Path) -> None:
    for row in (
        {"messages": [{"role": "user", "content": " "}, {"role": "assistant", "content": "x"}]},
        {"problem": "", "answer": "1"},
        {"prompt": "", "label": "1"},
    ):
        with pytest.raises(ValueError, match="no question"):
            read(row, root)
    with pytest.raises(ValueError, match="the user's message is int, not a text"):
        read({"problem": 7, "answer": "1"}, root)


@pytest.mark.parametrize(
    "row",
    [
        {"messages": [{"role": "user", "content": "Who speaks?"}], "audios": ["a.wav"]},
        {"prompt": "Who speaks?", "audio": "a.wav", "answer": "Anna"},
        {"problem": "Who speaks?", "audio": {"array": [0.0], "path": "a.wav"}, "answer": "Anna"},
        {"problem": "Who speaks?", "speech": "a.flac", "answer": "Anna"},
        {"problem": "Who speaks?", "audio_id": 7, "answer": "Anna"},
        {"problem": "<audio>Who speaks?", "answer": "Anna"},
        {"messages": [{"role": "user", "content": [{"type": "audio", "audio": "a.wav"}]}]},
    ],
)
def test_row_with_sound_is_refused(root: Path, row: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"only images and videos|<audio>|'audio'"):
        read(row, root)


def test_the_system_prompt_of_a_conversation(root: Path) -> None:
    turns = [{"from": "human", "value": "Hi."}, {"from": "gpt", "value": "Hello."}]
    chat = [{"role": "user", "content": "Hi."}, {"role": "assistant", "content": "Hello."}]
    expected = ["system: Be brief.", "user: Hi.", "assistant: Hello."]
    for row in ({"conversations": turns}, {"messages": chat}):
        sample = read({**row, "system": "Be brief."}, root)
        assert written(sample) == expected
        assert "system" not in sample.meta
    both = {"messages": [{"role": "system", "content": "Be long."}, *chat], "system": "Be brief."}
    with pytest.raises(ValueError, match="two system prompts"):
        read(both, root)


def test_roles_that_are_unknown(root: Path) -> None:
    with pytest.raises(ValueError, match="unknown role 'critic'"):
        read({"messages": [{"role": "critic", "content": "x"}]}, root)


# ms-swift ----------------------------------------------------------------------------------------


def swift(question: str, reply: str | None, **columns: Any) -> dict[str, Any]:
    replies = [] if reply is None else [{"role": "assistant", "content": reply}]
    return {
        "messages": [{"role": "user", "content": f"<image>{question}"}, *replies],
        "images": ["a.png"],
        **columns,
    }


def test_swift_solution_is_the_gold(root: Path) -> None:
    sample = read(swift("2+3?", None, solution="<answer>5</answer>"), root)
    assert (sample.answer, sample.task, others(sample)) == ("5", "math", {})


@pytest.mark.parametrize(
    "objects",
    [
        {"ref": ["sheep"], "bbox": [[2, 3, 20, 15], [22, 3, 40, 30]]},
        {
            "ref": ["sheep"], "bbox": [[0.05, 0.1, 0.5, 0.5], [0.55, 0.1, 1, 1]],
            "bbox_type": "norm1",
        },
        '[{"caption": "sheep", "bbox": [2, 3, 20, 15], "bbox_type": "real"}, '
        '{"bbox": [22, 3, 40, 30], "bbox_type": "real"}]',
    ],
)  # fmt: skip
def test_swift_boxes_are_the_gold(root: Path, objects: Any) -> None:
    gold = [[2, 3, 20, 15], [22, 3, 40, 30]]
    sample = read(swift("Find the <ref-object>.", "<bbox><bbox>", objects=objects), root)
    assert written(sample) == ["user: [a.png]Find the sheep."]
    assert sample.task == "iou"
    assert sample.answer == [pytest.approx(box) for box in gold]
    assert sample.media[0].size == (40, 30)
    unplaced = read(swift("Find the <ref-object>.", None, objects=objects), root)
    assert unplaced.answer == [pytest.approx(box) for box in gold]


def test_swift_boxes_that_cannot_be_learnt(root: Path) -> None:
    boxes = {"ref": ["dog"], "bbox": [[2, 3, 20, 15]]}
    for question, reply, objects, message in (
        ("What is at <bbox>?", "A dog.", {"bbox": [[2, 3, 20, 15]]}, "in a question"),
        ("Describe.", "<ref-object><bbox> runs.", boxes, "within a text"),
        ("Find <ref-object>.", "<bbox><bbox>", boxes, r"2 <bbox> placeholder\(s\) but 1 box"),
        ("Find <ref-object>.", "<bbox>", {"bbox": boxes["bbox"]}, r"1 <ref-object> .* 0 name"),
        ("Click <ref-object>.", "<bbox>", {"ref": ["x"], "bbox": [[2, 3]]}, "not a box of four"),
        ("Find <ref-object>.", "<bbox>", {**boxes, "bbox_type": "norm7"}, "bbox_type norm7"),
        ("Find <ref-object>.", "<bbox>", {"ref": ["x"], "bbox": [[2, 3, 90, 9]]}, "leaves the im"),
    ):
        with pytest.raises(ValueError, match=message):
            read(swift(question, reply, objects=objects), root)


# Boxes in replies --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "reply",
    [
        "[3, 6, 33, 28]",
        '```json\n[{"bbox_2d": [3, 6, 33, 28]}]\n```',
        "<answer>[3,6,33,28]</answer>",
    ],
)
def test_vlm_r1_boxes_are_no_mathematics(root: Path, reply: str) -> None:
    question = "<image>Please provide the bounding box of the region: the red cup."
    turns = [{"from": "human", "value": question}, {"from": "gpt", "value": reply}]
    sample = read({"image": "a.png", "conversations": turns}, root)
    assert (sample.task, sample.answer) == ("iou", [[3, 6, 33, 28]])
    assert [m.role for m in sample.messages] == ["user"]
    assert sample.media[0].size == (40, 30)


def test_rec_rows_with_and_without_a_size(root: Path) -> None:
    row = {"problem": "the red cup", "image": "a.png", "solution": [3.5, 6, 33.5, 28]}
    for more in ({}, {"width": 40, "height": 30}):
        sample = read({**row, **more}, root)
        assert (sample.task, sample.answer) == ("iou", [[3.5, 6, 33.5, 28]])
        assert sample.media[0].size == (40, 30)
    tagged = {**row, "problem": "Locate the cup.", "solution": "<answer>[3, 6, 33, 28]</answer>"}
    assert read(tagged, root).task == "iou"
    outside = {**row, "solution": [3, 6, 333, 28]}
    with pytest.raises(ValueError, match="leaves the image of 40 x 30"):
        read(outside, root)


def test_boxes_of_0_to_1_are_no_pixels(root: Path) -> None:
    box = [0.1, 0.2, 0.5, 0.6]
    turns = [
        {"from": "human", "value": "<image>Where is the cup?"},
        {"from": "gpt", "value": str(box)},
    ]
    for row in (
        {"problem": "the cup", "image": "a.png", "solution": box},
        {"problem": "Where is it?", "image": "a.png", "solution": f"<answer>{box}</answer>"},
        {"image": "a.png", "conversations": turns},
        swift("Find the <ref-object>.", "<bbox>", objects={"ref": ["cup"], "bbox": [box]}),
    ):
        with pytest.raises(ValueError, match=r"they fit as 0 to 1; .* pixels of .* 40 x 30"):
            read(row, root)


def test_four_numbers_may_be_no_box(root: Path) -> None:
    row = {"problem": "Next four?", "image": "a.png", "solution": "<answer>[1, 2, 3, 5]</answer>"}
    with pytest.raises(ValueError, match=r"may be a box or numbers; say which in a column 'task'"):
        read(row, root)
    sample = read({**row, "task": "math"}, root)
    assert (sample.task, sample.answer, others(sample)) == ("math", "[1, 2, 3, 5]", {})
    sample = read({**row, "task": "iou"}, root)
    assert (sample.task, sample.answer) == ("iou", [[1, 2, 3, 5]])


def test_numbers_in_a_record_file(root: Path) -> None:
    (root / "r.jsonl").write_text(
        '{"version": 1, "id": "x", "messages": [{"role": "user", "content": "<image2><image1>"}],'
        ' "images": ["a.png", "b.png"]}\n'
    )
    (sample,) = read_records(root / "r.jsonl")
    pixels = [Image.open(ref.path).getpixel((0, 0)) for ref in sample.media]
    assert pixels == [(0, 0, 255), (255, 0, 0)]
