"""The sheets whose digit only zoom shows: what is on them, and what the demonstrations show."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from datasets_prep.generators import make
from datasets_prep.generators.digits import load_scans
from mmr1.data.record import read_records
from mmr1.environments.pictures import picture
from mmr1.environments.toolbox import zoom
from mmr1.vision.families.loading import load_family


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("data") / "zoom"
    make("zoom", path, 3)
    return path


def test_no_policy_can_tell_the_digit_from_the_sheet(made, tiny_model):
    """As the model's own processor shows them, sheets with the same place are the same sheet."""
    family = load_family(str(tiny_model))
    of_place: dict[int, tuple[set[str], set[bytes]]] = {}
    for sample in read_records(made / "eval.jsonl")[:80]:
        (medium,) = sample.media
        prepared = family.prepare_media(medium)
        assert prepared.pixels == (28, 28)
        digits, seen = of_place.setdefault(sample.meta["part"], (set(), set()))
        digits.add(sample.answer)
        seen.add(prepared.patches.numpy().tobytes())
    assert len(of_place) == 4
    assert all(len(digits) > 5 and len(seen) == 1 for digits, seen in of_place.values())
    assert len({frozenset(seen) for _, seen in of_place.values()}) == 4


def test_the_call_of_a_demonstration_shows_the_digit_and_nothing_else(made):
    scans, labels = load_scans()
    looks = [s for s in read_records(made / "sft.jsonl") if "-look-" in s.id]
    assert len(looks) == 60
    for sample in looks:
        question, call, shown, answer = sample.messages
        index = int(re.fullmatch(r"zoom-(\d+)-look-0", sample.id)[1])
        (sheet,), (part,) = sample.shown, shown.parts
        (written,) = re.findall(r"<tool_call>(.*)</tool_call>", call.text)
        asked = json.loads(written)
        cut = np.asarray(zoom(picture(sheet.read(), (28, 28), "resized"), **asked["arguments"]))
        # The ink, 0 to 16, is what a pixel differs from the paper by.
        ink = np.abs(cut[::4, ::4, 0].astype(float) - 128) * 16 / 127
        assert asked["name"] == "zoom"
        assert np.abs(ink - scans[index]).max() < 0.1
        assert np.array_equal(np.asarray(Image.open(part.path).convert("RGB")), cut)
        assert answer.text == f"<answer>{labels[index]}</answer>"
        assert question.text == "Which digit is this?"


def test_of_the_demonstrations_with_a_sheet_one_in_three_looks(made):
    samples = read_records(made / "sft.jsonl")
    sheets = [s for s in samples if "/sheets/" in str(s.shown[0].path)]
    read = [s for s in samples if "/parts/" in str(s.shown[0].path)]
    assert len(sheets) == 180
    assert sum(len(s.messages) > 2 for s in sheets) == 60
    assert len(read) == 120
    assert all(s.messages[-1].text == f"<answer>{s.answer}</answer>" for s in samples)
    # Nobody is shown a digit that the others are not.
    held_out = {s.id for split in ("rl", "eval") for s in read_records(made / f"{split}.jsonl")}
    assert not held_out & {s.id[: len("zoom-0000")] for s in samples}
