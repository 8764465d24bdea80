"""The sheets whose digit only zoom shows: what is on them, and what the demonstrations show."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from datasets_prep.generators.digits import draw, load_scans
from datasets_prep.make import make
from mmr1.data.record import read_records
from mmr1.environments.pictures import picture
from mmr1.environments.toolbox import zoom


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("data") / "zoom"
    make("zoom", path, 3)
    return path


def test_the_call_of_a_demonstration_shows_the_digit_and_nothing_else(made):
    scans, labels = load_scans()
    samples = read_records(made / "sft.jsonl")
    looked = [sample for sample in samples if len(sample.messages) > 2]
    assert len(samples) == 60
    assert len(looked) == 40
    for sample in looked:
        question, call, shown, answer = sample.messages
        index = int(sample.id.removeprefix("zoom-"))
        (sheet,), (part,) = sample.shown, shown.parts
        (written,) = re.findall(r"<tool_call>(.*)</tool_call>", call.text)
        asked = json.loads(written)
        cut = zoom(picture(sheet.read(), (28, 28), "resized"), **asked["arguments"])
        digit = np.asarray(draw(scans[index], 32))
        assert asked["name"] == "zoom"
        assert np.array_equal(np.asarray(cut), digit)
        assert np.array_equal(np.asarray(Image.open(part.path)), digit)
        assert answer.text == f"<answer>{labels[index]}</answer>"
        assert question.text == "Which digit is this?"


def test_a_sheet_is_seen_too_small_to_be_read(made):
    for sample in read_records(made / "eval.jsonl")[:50]:
        (sheet,) = sample.media
        assert sheet.options == {"min_pixels": 784, "max_pixels": 784}
        assert sheet.size == (224, 224)
        assert [m.role for m in sample.messages] == ["user"]
