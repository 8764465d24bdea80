"""Made datasets: what is drawn is what the answer says, and the same seed gives the same bytes."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

from datasets_prep.finish import check_gold
from datasets_prep.generators import (
    GENERATORS,
    calculate,
    counting,
    grounding,
    make,
    solids,
    video,
)
from datasets_prep.validate import validate
from mmr1.data.record import read_records
from mmr1.environments import toolbox
from mmr1.environments.calls import read_calls
from mmr1.rewards.reading.extract import extract_answer
from mmr1.types import Sample
from mmr1.vision.budget import PixelBudget, VideoBudget
from mmr1.vision.images import load_image
from mmr1.vision.videos import load_video

SMALL = {"sft": 6, "rl": 12, "eval": 6}
OTHER_LOOKS = {"counting": solids.OTHER_LOOKS, "grounding": grounding.OTHER_LOOKS}
NAMES = ["calculate", "counting", "grounding", "video"]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("made")
    with pytest.MonkeyPatch.context() as patch:
        for module in (calculate, video):
            patch.setattr(module, "SIZES", SMALL)
        for module in (counting, grounding):
            patch.setattr(module, "SIZES", {**SMALL, "eval_other": 12})
        for name in NAMES:
            make(name, folder / name, seed=0)
            make(name, folder / f"{name}-again", seed=0)
            make(name, folder / f"{name}-other", seed=1)
    return folder


def samples(folder: Path) -> list[Sample]:
    return [s for path in sorted(folder.glob("*.jsonl")) for s in read_records(path)]


@pytest.mark.parametrize("name", NAMES)
def test_sound_and_reproducible(made: Path, name: str) -> None:
    assert validate(made / name)[1] == []
    manifests = [(made / f"{name}{w}/manifest.json").read_text() for w in ("", "-again", "-other")]
    assert manifests[0] == manifests[1] != manifests[2]
    assert GENERATORS.load(name).licence


def test_a_product_is_calculated_by_the_tool_and_is_in_one_split(made: Path) -> None:
    for sample in samples(made / "calculate"):
        a, b = map(int, sample.id.split("-")[1:3])
        assert sample.answer == str(a * b)
        if "-call-" in sample.id:
            (call,) = read_calls(sample.messages[1].text)
            assert sample.messages[2].text == toolbox.calculate(**call.arguments) == str(a * b)
    of_split = [
        {tuple(s.id.split("-")[1:3]) for s in read_records(made / f"calculate/{split}.jsonl")}
        for split in SMALL
    ]
    assert [len(products) for products in of_split] == list(SMALL.values())
    assert len(set.union(*of_split)) == sum(SMALL.values())


@pytest.mark.parametrize("name", NAMES)
def test_demonstrations_say_the_answer(made: Path, name: str) -> None:
    for sample in samples(made / name):
        check_gold(sample)
        if sample.messages[-1].role == "assistant":
            final_answer = extract_answer(sample.messages[-1].text, "auto")
            gold = sample.answer[0] if sample.task == "iou" else sample.answer
            assert final_answer == str(gold)


def test_counts_are_of_the_scene_and_the_scene_is_drawn(made: Path) -> None:
    for sample in samples(made / "counting"):
        shape_in_question = re.fullmatch(r"How many (\w+)s are there\?", sample.question)[1]
        scene = sample.meta["scene"]
        assert sum(solid["shape"] == shape_in_question for solid in scene) == int(sample.answer)
        if "look" in sample.meta:
            continue
        picture = np.asarray(load_image(sample.media[0])).astype(int)
        coloured = np.ptp(picture, axis=2).reshape(3, 28, 3, 28).max(axis=(1, 3)).ravel() > 40
        assert set(np.flatnonzero(coloured)) == {solid["cell"] for solid in scene}


@pytest.mark.parametrize("name", OTHER_LOOKS)
def test_other_looks_leave_the_other_splits_alone(
    made: Path, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are drawn with the bytes that they have without; looks are as often as another."""
    monkeypatch.setattr({"counting": counting, "grounding": grounding}[name], "SIZES", SMALL)
    make(name, tmp_path / name, seed=0)
    files = [f for f in (tmp_path / name).rglob("*") if f.suffix in {".jsonl", ".png"}]
    assert len(files) == len(SMALL) + sum(SMALL.values())
    for file in files:
        assert file.read_bytes() == (made / name / file.relative_to(tmp_path / name)).read_bytes()
    looks = [s.meta["look"] for s in read_records(made / name / "eval_other.jsonl")]
    assert looks == [*OTHER_LOOKS[name]] * 3
    assert not any(
        "look" in s.meta for split in SMALL for s in read_records(made / name / f"{split}.jsonl")
    )


@pytest.mark.parametrize("look", [solids.PLAIN, *solids.OTHER_LOOKS.values()])
def test_solids_are_in_their_cells_in_every_look(look: solids.Look) -> None:
    scene = {0: ("sphere", "red"), 4: ("cube", "blue"), 8: ("cylinder", "gold")}
    for seed in range(5):
        empty, drawn = (
            np.asarray(solids.render(content, np.random.default_rng(seed), look)).astype(int)
            for content in ({}, scene)
        )
        changed = abs(drawn - empty).max(axis=2).reshape(3, 28, 3, 28) > 20
        share = changed.mean(axis=(1, 3)).ravel()
        assert set(np.flatnonzero(share)) == set(scene)
        assert min(share[[*scene]]) > 0.08


@pytest.mark.parametrize("look", ["plain", *grounding.OTHER_LOOKS])
def test_boxes_are_where_they_are_said_to_be_in_every_look(look: str) -> None:
    """The edge of a box is brighter than what is around it, or darker by as much."""
    box = (1, 2, 5, 5)
    draw = grounding.OTHER_LOOKS.get(look, grounding.plain)
    for seed in range(20):
        shown = np.asarray(draw(box, np.random.default_rng(seed))).astype(int)
        step = -1 if look == "dark" else 1
        assert (step * (shown[2:5, 1] - shown[2:5, 0]) > 30).all()
        assert (step * (shown[2:5, 4] - shown[2:5, 5]) > 30).all()
        assert (step * (shown[2, 1:5] - shown[1, 1:5]) > 30).all()
        assert (step * (shown[4, 1:5] - shown[5, 1:5]) > 30).all()


def test_boxes_are_where_it_is_bright(made: Path) -> None:
    for sample in samples(made / "grounding"):
        if "look" in sample.meta:
            continue
        bright = np.asarray(load_image(sample.media[0])).min(axis=2) >= 150
        rows, columns = np.flatnonzero(bright.any(1)), np.flatnonzero(bright.any(0))
        box = [columns[0], rows[0], columns[-1] + 1, rows[-1] + 1]
        assert [box] == sample.answer
        pixels_seen = load_image(sample.media[0], PixelBudget(4 * 784, 256 * 784))
        assert pixels_seen.size == (84, 84)


def yellow(sample: Sample) -> tuple[np.ndarray, float]:
    """``[T, H, W]``: where the yellow square is in each sampled frame; and the sampled rate."""
    budget = VideoBudget(frame=PixelBudget(4 * 784, 256 * 784))
    frames, metadata = load_video(sample.media[0], budget)
    red, blue = frames[:, 0].int().numpy(), frames[:, 2].int().numpy()
    return (red > 180) & (blue < 140), metadata.sampled_fps


def test_videos_show_what_the_answer_says(made: Path) -> None:
    for sample in samples(made / "video"):
        if "-order-" in sample.id:
            continue
        pixels_seen, rate = yellow(sample)
        there = np.flatnonzero(pixels_seen.any(axis=(1, 2)))
        if "-span-" in sample.id:
            assert [there[0] / rate, (there[-1] + 1) / rate] == sample.answer
            continue
        assert len(there) == 8
        centres = [np.argwhere(frame).mean(axis=0) for frame in pixels_seen]
        down, across = centres[-1] - centres[0]
        expected = {"left": across < -30, "right": across > 30, "up": down < -30, "down": down > 30}
        assert expected[sample.answer]


def test_held_out_scans_appear_nowhere_else(made: Path) -> None:
    def pictures(split: str) -> set[bytes]:
        budget = VideoBudget(frame=PixelBudget(4 * 784, 256 * 784))
        loaded = read_records(made / f"video/order-{split}.jsonl")
        clips = [load_video(s.media[0], budget)[0] for s in loaded]
        return {clip[i].numpy().tobytes() for clip in clips for i in (0, 2)}

    assert not pictures("eval") & (pictures("sft") | pictures("rl"))
