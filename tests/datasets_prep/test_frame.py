"""The videos whose digit only frame shows: what is in them, and what the demonstrations show."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from datasets_prep.generators import make
from mmr1.data.record import read_records
from mmr1.environments.pictures import Video
from mmr1.environments.toolbox import frame
from mmr1.vision.families.loading import load_family


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("data") / "frame"
    make("frame", path, 3)
    return path


def test_no_policy_can_tell_the_digit_from_what_the_prompt_shows(made, tiny_model):
    """As the model's own processor shows them, all videos are the same dark video."""
    family = load_family(str(tiny_model))
    samples = read_records(made / "eval.jsonl")[:20]
    prepared = [family.prepare_media(sample.media[0]) for sample in samples]
    assert len({sample.answer for sample in samples}) > 5
    assert len({medium.patches.numpy().tobytes() for medium in prepared}) == 1


def test_the_call_of_a_demonstration_shows_the_digit_asked_for(made):
    looks = [s for s in read_records(made / "sft.jsonl") if "-look-" in s.id]
    assert len(looks) == 120
    for sample in looks[:40]:
        question, call, shown, answer = sample.messages
        (written,) = re.findall(r"<tool_call>(.*)</tool_call>", call.text)
        asked = json.loads(written)
        second = asked["arguments"]["seconds"]
        assert (asked["name"], question.text) == (
            "frame",
            f"Which digit is there at second {second}?",
        )
        seen = np.asarray(frame(Video(sample.shown[0].read()), second)).astype(float)
        drawn = np.asarray(Image.open(shown.parts[0].path).convert("RGB")).astype(float)
        assert np.abs(seen - drawn).mean() < 4  # of 255: the video is compressed
        assert answer.text == f"<answer>{sample.answer}</answer>"


def test_the_digit_is_another_at_most_other_seconds(made):
    """Who asks for a frame without reading the question is seldom right."""
    sample = next(s for s in read_records(made / "rl.jsonl") if s.meta["second"] == 4)
    video = Video(sample.media[0].read())
    frames = [np.asarray(frame(video, second)).astype(float) for second in range(9)]
    apart = [np.abs(other - frames[4]).mean() for other in frames]
    assert apart[4] == 0
    assert min(apart[:4] + apart[5:]) > 10
    assert frames[0].mean() < 2 > frames[8].mean()
