"""The traps that real datasets hold, one by one, through the converters."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from datasets_prep.conversion import convert
from datasets_prep.converters import CONVERTERS
from datasets_prep.converters.rows import converter_of
from datasets_prep.finish import check_gold
from mmr1.boxes import convert as convert_box
from mmr1.boxes import pixels
from mmr1.data.forms.form import CHANGED, Place
from mmr1.data.sources import load_samples
from mmr1.rewards.builtin.iou import iou
from mmr1.types import MediaRef, Sample
from mmr1.vision.budget import PixelBudget, fit_size
from tests.vision.media import encoded, noise, write_video


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "a.png").write_bytes(encoded(Image.fromarray(noise(427, 640))))
    (tmp_path / "b.png").write_bytes(encoded(Image.fromarray(noise(60, 50, 1))))
    write_video(tmp_path / "V1.mp4", frames=60, fps=10)
    return tmp_path


def run(name: str, row: dict[str, Any], root: Path) -> list[Any]:
    return list(converter_of(name).convert(row, Place(root, name, 0)))


def one(name: str, row: dict[str, Any], root: Path) -> Sample:
    (result,) = run(name, row, root)
    return result


# Boxes -------------------------------------------------------------------------------------------

SOLUTION = [103.93, 299.99, 238.15, 477.41]


def test_gold_boxes_are_original_pixels_and_are_rescaled_once(root: Path) -> None:
    row = {
        "image": "a.png",
        "problem": "the lady",
        "solution": SOLUTION,
        "bbox_list": [[103.93, 299.99, 237.15, 476.41]],
        "normalized_solution": [243, 468, 557, 745],
        "width": 427,
        "height": 640,
    }
    sample = one("rec", row, root)
    assert sample.answer == [SOLUTION]
    assert sample.media[0].size == (427, 640)
    assert "normalized_solution" not in sample.meta
    # The model answers in pixels of what it saw; the reward brings them back, once.
    resized = fit_size(427, 640, PixelBudget())
    converted = convert_box(SOLUTION, pixels(427, 640), pixels(*resized))
    completion = f"<answer>{[round(v, 2) for v in converted]}</answer>"
    sizes = {"original_sizes": [sample.media[0].size], "media_sizes": [resized]}
    assert iou(completion, sample.answer, space="resized", **sizes) == pytest.approx(1, abs=1e-3)


def test_a_normalised_box_in_place_of_the_solution_is_caught(root: Path) -> None:
    row = {"image": "a.png", "problem": "?", "width": 427, "height": 640}
    with pytest.raises(ValueError, match="may be of another space"):
        one("rec", {**row, "solution": [243, 468, 557, 745]}, root)


def test_raw_refcoco_is_xywh_with_several_sentences(root: Path) -> None:
    row = {
        "image": "a.png",
        "bbox": [103.93, 299.99, 134.22, 177.42],
        "sentences": [{"sent": "the lady"}, {"sent": "blue shirt"}],
    }
    first, second = run("refcoco", row, root)
    assert first.answer[0] == pytest.approx(SOLUTION)
    assert second.question.endswith("blue shirt")


def test_training_form_reads_the_box_from_the_reply(root: Path) -> None:
    turns = [
        {"from": "human", "value": "<image>the lady"},
        {"from": "gpt", "value": '```json\n[{"bbox_2d": [104, 300, 238, 477]}]\n```'},
    ]
    sample = one("vlm_r1", {"image": "a.png", "conversations": turns}, root)
    assert sample.answer == [[104, 300, 238, 477]]
    assert [m.role for m in sample.messages] == ["user"]


# Placeholders ------------------------------------------------------------------------------------


def math_vision(root: Path, question: str, options: list[str], answer: str = "A") -> Any:
    row = {"id": "1", "question": question, "options": options, "answer": answer, "image": "a.png"}
    (result,) = run("math_vision", row, root)
    return result


def test_several_tags_for_one_picture(root: Path) -> None:
    result = math_vision(root, "Row <image1> and star <image2>?", [], "6")
    assert "several tags" in result.meta[CHANGED]
    assert [type(p).__name__ for p in result.messages[0].parts] == [
        "TextPart",
        "MediaRef",
        "TextPart",
    ]
    assert result.question == "Row  and star (picture 2)?"


def test_no_tag_or_tags_in_the_options_only(root: Path) -> None:
    result = math_vision(root, "Which graph?", ["<image1>", "<image2>"], "B")
    assert "no tag" in result.meta[CHANGED]
    assert isinstance(result.messages[0].parts[0], MediaRef)
    assert result.question == "Which graph?\nA. picture 1\nB. picture 2"
    assert (result.task, result.answer) == ("choice", "B")


def test_two_images_without_any_tag(root: Path) -> None:
    turns = [{"from": "human", "value": "Compare."}, {"from": "gpt", "value": "Same"}]
    sample = one("vlm_r1", {"image": ["a.png", "b.png"], "conversations": turns}, root)
    kinds = [getattr(p, "kind", "text") for p in sample.messages[0].parts]
    assert kinds == ["image", "image", "text"]


def test_counts_that_differ_are_dropped(root: Path) -> None:
    row = {"problem": "<image><image>?", "images": ["a.png"], "answer": "1"}
    with pytest.raises(ValueError, match=r"2 <image> placeholder\(s\) .* but 1 image\(s\)"):
        one("easyr1", row, root)


# Answers -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        ("18.", "18"),
        ("$$\\number{24} $$", "$24$"),
        ("30${}^\\circ $", "30°"),
        (" 40° ", "40°"),
        ("$\\frac{a}{2}$", "$\\frac{a}{2}$"),
    ],
)
def test_mmk12_answers_are_cleaned(root: Path, answer: str, expected: str) -> None:
    row = {"id": "x", "question": "?", "answer": answer, "image_path": "a.png"}
    assert one("mmk12", row, root).answer == expected


@pytest.mark.parametrize(
    "answer",
    ["254.4\n267.12", "(1)3;(2)3, quadrilateral;(3)equal", "Therefore, by the theorem, " * 4],
)
def test_answers_no_rule_can_check_are_dropped(root: Path, answer: str) -> None:
    with pytest.raises(ValueError, match=r"several answers|prose"):
        one("mmk12", {"id": "x", "question": "?", "answer": answer, "image_path": "a.png"}, root)


def gold(answer: Any, task: str = "math", **meta: Any) -> None:
    check_gold(Sample("s", (), answer, task, "x", meta))


def test_unreadable_golds_are_errors_at_preparation() -> None:
    for answer in (
        "5√{3}",
        "6π",
        "2 \\sqrt { 221 }",
        "145°",
        "$\\boxed{60}$",
        "<answer>65</answer>",
    ):
        gold(answer)
    with pytest.raises(ValueError, match="gold"):
        gold("\\frac{1}{")
    with pytest.raises(ValueError, match="gold"):
        gold("")
    with pytest.raises(ValueError, match="names none of the options"):
        gold("E", "choice", options=["x", "y"])
    with pytest.raises(ValueError, match="not a list of boxes"):
        gold([[5, 5, 1, 1]], "iou")


def test_a_solution_without_its_tag_is_dropped(root: Path) -> None:
    corrupt = '<think>{"time": [24.3, 30.4]}</think><[PLHD21_never_used]>'
    row = {
        "problem": "?",
        "solution": corrupt,
        "path": "V1.mp4",
        "data_type": "video",
        "problem_type": "temporal grounding",
    }
    with pytest.raises(ValueError, match="has no <answer> tag"):
        one("video_r1", row, root)


def test_open_r1_video_letters_and_mathvista_texts(root: Path) -> None:
    row = {"problem": "Which? A. x B. y", "solution": "<answer>A.</answer>", "video": "V1.mp4"}
    assert one("r1_v", row, root).answer == "A"
    vista = {"question": "Which?", "image": "a.png", "choices": ["145°", "30°"], "answer": "30°"}
    assert one("mathvista", vista, root).answer == "B"
    number = {
        "question": "How far?", "image": "a.png", "choices": None, "answer": "1.2",
        "answer_type": "float", "precision": 1.0, "unit": "m",
    }  # fmt: skip
    sample = one("mathvista", number, root)
    assert (sample.task, sample.answer) == ("numeric", "1.2")
    assert sample.question == "How far? (in m) Round to 1 decimal place(s)."
    with pytest.raises(ValueError, match="withheld"):
        one("mathvista", {**vista, "answer": ""}, root)


# Videos ------------------------------------------------------------------------------------------


def test_moments_are_clipped_counted_or_refused(root: Path) -> None:
    (root / "charades_sta_train.txt").write_text(
        "V1 0.5 2.0##a person sits.\nV1 4.0 9.9##a person stands.\nV1 3.0 3.0##nothing.\n"
        "V1 7.0 9.0##afterwards.\nV2 0.0 1.0##another video.\nrubbish\n"
    )
    manifest = convert("charades_sta", root / "charades_sta_train.txt", root / "out", workers=1)
    assert manifest["counts"] == {"rows": 6, "records": 2, "dropped": 4}
    assert manifest["changed"] == {"end clipped to the video's duration": 1}
    first, second = load_samples(root / "out/records.jsonl")
    assert (first.answer, second.answer) == ([0.5, 2.0], [4.0, 6.0])
    reasons = [json.loads(s)["reason"] for s in (root / "out/quarantine.jsonl").open()]
    assert "ends (3 s) before it begins" in reasons[0]
    assert "begins at 7 s of a 6 s video" in reasons[1]
    assert "the video 'V2'" in reasons[2]
    assert "not of the form" in reasons[3]


def test_three_json_forms_of_moments(root: Path) -> None:
    by_video = {"V1": {"duration": 6.0, "timestamps": [[1, 2]], "sentences": ["x."]}}
    (root / "charades_test.json").write_text(json.dumps(by_video))
    convert("charades_sta", root / "charades_test.json", root / "one", workers=1)
    assert load_samples(root / "one/records.jsonl")[0].answer == [1.0, 2.0]
    listed = {
        "video": "V1.mp4", "duration": 6.0, "timestamp": [1.0, 2.0], "sentence": "x.",
        "video_start": None, "video_end": None,
    }  # fmt: skip
    assert one("time_r1", listed, root).answer == [1.0, 2.0]
    segment = {**listed, "duration": 3.0, "video_start": 2.0, "video_end": 5.0}
    assert one("time_r1", segment, root).media[0].options == {"start": 2.0, "end": 5.0}
    text = {"path": "V1.mp4", "question": "x", "answer": "1.5-2.5", "duration": 6.0}
    assert one("tvgbench", text, root).answer == [1.5, 2.5]


# Paths of other machines -------------------------------------------------------------------------


def test_mm_eureka_prefixes_in_both_copies(root: Path) -> None:
    (root / "imgs").mkdir()
    (root / "imgs/x.png").write_bytes((root / "b.png").read_bytes())
    message = [
        {
            "role": "user",
            "content": [
                {"type": "image", "image": "file:///inspire/hdd/them/imgs/x.png"},
                {"type": "text", "text": "Find x."},
            ],
        }
    ]
    first = {"id": "1", "message": json.dumps(message), "answer": "3"}
    second = {
        "id": "1",
        "conversations": [{"from": "human", "value": "<image>Find x."}],
        "image_urls": ["inspire/hdd/them/imgs/x.png"],
        "answer": "3",
    }
    for row in (first, second):
        sample = one("mm_eureka", row, root)
        assert sample.media[0].path == root / "imgs/x.png"
        assert (sample.question, sample.answer) == ("Find x.", "3")


def test_every_dataset_has_a_converter_with_its_facts() -> None:
    for name in CONVERTERS.names():
        converter = CONVERTERS.load(name)
        assert converter.name == name
        assert converter.description
        assert converter.source
        assert converter.licence
        assert converter.files or name == "imagefolder"  # whose rows are those of the folder
