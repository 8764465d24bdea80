"""Benchmarks score as their own scripts do; the numbers are worked by hand."""

from __future__ import annotations

import base64
from pathlib import Path

import pytest
from PIL import Image

from datasets_prep.converters.rows import converter_of
from mmr1.config import Config
from mmr1.data.forms.form import Place
from mmr1.data.templates import load_template
from mmr1.evaluation.presets import PRESETS, with_preset
from mmr1.rewards import RewardItem, build_composite_reward
from mmr1.trainer.validation.evaluate import accuracy_function
from mmr1.types import Message, Sample, TextPart
from tests.vision.media import encoded, write_video

SIZE = (200, 100)
BASE = Config(model={"path": "x"})


def value(preset: str, completion: str, answer: object, task: str, **meta: object) -> float | None:
    config = with_preset(BASE, preset, None)
    sample = Sample("a", (Message("user", (TextPart("?"),)),), answer, task, None, meta)
    sizes = ((100, 50),)
    with build_composite_reward(config.rewards, config.scoring) as composite_reward:
        (reward,) = composite_reward.score(
            [
                RewardItem(
                    f"<answer>{completion}</answer>",
                    sample,
                    media_sizes=sizes,
                    model_space="resized",
                )
            ]
        )
    return reward.components[accuracy_function(config.rewards, config.eval.accuracy_function)]


@pytest.mark.parametrize(
    ("preset", "completion", "answer", "task", "meta", "expected"),
    [
        ("mathvista", "B", "B", "choice", {"options": ["1", "2"]}, 1.0),
        ("mathvista", "1.24", "1.2", "numeric", {"precision": 1.0}, 1.0),
        ("mathvista", "1.26", "1.2", "numeric", {"precision": 1.0}, 0.0),
        ("mathvista", "7", "7", "numeric", {"precision": None}, 1.0),
        ("mathverse", r"\frac{1}{2}", "0.5", "math", {}, 1.0),
        ("superclevr", "three", 3, "count", {}, 1.0),
        ("geoqa", "140", "140°", "math", {}, 1.0),
        # The model saw 100 x 50 of 200 x 100: the same box. Half of it: IoU 0.5.
        (
            "refcoco",
            "[10, 10, 50, 40]",
            [[20, 20, 100, 80]],
            "iou",
            {"image_size": (200, 100)},
            1.0,
        ),
        (
            "refcoco",
            "[10, 10, 30, 40]",
            [[20, 20, 100, 80]],
            "iou",
            {"image_size": (200, 100)},
            0.5,
        ),
        ("charades_sta", "[2, 8]", [4, 10], "tiou", {"duration": 30.0}, 0.5),
        ("vsi_bench", "A", "A", "choice", {"options": ["left", "right"]}, 1.0),
        # Off by 20%: below 1 - t for t = 0.5 ... 0.75, six of ten; by 0: all; by 60%: none.
        ("vsi_bench", "12", "10", "regression", {}, 0.6),
        ("vsi_bench", "10", "10", "regression", {}, 1.0),
        ("vsi_bench", "4", "10", "regression", {}, 0.0),
    ],
)
def test_scores(preset, completion, answer, task, meta, expected):
    assert value(preset, completion, answer, task, **meta) == pytest.approx(expected)


CHOICE = {
    "problem_id": 1,
    "problem": "Which way does it move?",
    "data_type": "video",
    "problem_type": "multiple choice",
    "options": ["A. Left", "B. Right"],
    "process": "",
    "solution": "<answer>B</answer>",
    "path": "clip.mp4",
    "data_source": "test",
}
BOX = {
    "image": "a.png",
    "problem": "Give the box of: the cup",
    "solution": [20.0, 20.0, 100.0, 80.0],
    "normalized_solution": [100, 200, 500, 800],
    "width": 200,
    "height": 100,
}
BOXES = ("[10, 10, 50, 40]", "[60, 10, 90, 40]")
ROWS = {
    "mmmu": (
        {
            "question": "<image 1> Which is it?",
            "options": "['a cat', 'an ant']",
            "image_1": "a.png",
            "question_type": "multiple-choice",
            "subfield": "Zoology",
            "answer": "B",
        },
        ("B", "A"),
    ),
    "clevr": (
        {"image": "a.png", "problem": "How many?", "solution": "<answer> 3 </answer>"},
        ("3", "4"),
    ),
    "r1_onevision_bench": (
        {
            "image": base64.b64encode(encoded(Image.new("RGB", (200, 100)))).decode(),
            "question": "Hint: Say a letter.\nQuestion: Which?\nChoices:\nA. red\nB. blue",
            "choices": "['red', 'blue']",
            "answer": "B",
            "level": "Junior High School",
            "category": "Physics",
        },
        ("B", "A"),
    ),
    **dict.fromkeys(("video_mme", "mvbench", "mmvu"), (CHOICE, ("B", "A"))),
    **dict.fromkeys(("tempcompass", "video_mmmu"), (CHOICE, ("B", "A"))),
    **dict.fromkeys(("refcoco", "refcoco_plus", "refcocog", "lisa"), (BOX, BOXES)),
}
"""Rows in the documented form of benchmarks that could not be fetched; a right answer, a wrong."""


@pytest.mark.parametrize("name", ROWS)
def test_a_row_in_the_benchmarks_form_is_read_and_scored(name: str, tmp_path: Path) -> None:
    Image.new("RGB", (200, 100)).save(tmp_path / "a.png")
    write_video(tmp_path / "clip.mp4")
    row, (right, wrong) = ROWS[name]
    preset = PRESETS[name]
    columns = {field: field for field in ("question", "answer", "image")}
    converter = converter_of(preset.converter, columns if preset.converter == "rows" else None)
    (sample,) = converter.convert(row, Place(tmp_path, "test", 0))
    config = with_preset(BASE, name, None)
    items = [
        RewardItem(
            f"<answer>{text}</answer>", sample, media_sizes=((100, 50),), model_space="resized"
        )
        for text in (right, wrong)
    ]
    with build_composite_reward(config.rewards, config.scoring) as composite_reward:
        values = [r.components[preset.reward] for r in composite_reward.score(items)]
    (least, *_) = preset.accuracy_thresholds
    assert [value >= least for value in values] == [True, False]
    assert preset.group_by is None or preset.group_by in sample.meta


@pytest.mark.parametrize("name", PRESETS)
def test_every_preset_names_what_exists(name):
    preset = PRESETS[name]
    assert converter_of(preset.converter).name == preset.converter
    load_template(preset.template)
    assert with_preset(BASE, name, "direct").data.prompt_template == "direct"
    assert with_preset(BASE, name, "reason").data.prompt_template == preset.template
    assert (
        with_preset(BASE, name, "theirs.py:QUESTION").data.prompt_template == "theirs.py:QUESTION"
    )


def test_other_datasets_are_scored_as_the_configuration_says():
    assert with_preset(BASE, "my_records", None) == BASE
    assert with_preset(BASE, "my_records", "direct").rewards == BASE.rewards


def test_a_run_with_a_reward_of_shuffled_frames_can_be_evaluated():
    functions = {"auto": {}, "temporal_contrast": {"of": "auto"}}
    run = Config(model={"path": "x"}, rewards=functions)
    assert set(with_preset(run, "vsi_bench", None).rewards) == {"format", "auto"}
