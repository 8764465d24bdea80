"""Leakage: what is found, by what, and what is not; and the looks it is found by."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
import pytest
from PIL import Image, ImageDraw, ImageEnhance, ImageOps

from datasets_prep.leakage import Leakage, Match, find_leaks, normalised
from datasets_prep.looks import LIMITS, Index, Looks
from mmr1.data.record import write_records
from mmr1.types import MediaRef, Message, Sample, TextPart
from mmr1.vision.images import load_image
from tests.vision.media import SHARED, encoded, noise, write_video


def shown(name: str, image: Image.Image, question: str, format: str = "PNG") -> Sample:
    return asked(name, MediaRef("image", data=encoded(image, format)), question)


def asked(name: str, ref: MediaRef, question: str = "What is it?") -> Sample:
    return Sample(name, (Message("user", (ref, TextPart(question))),))


def found(folder: Path, train: list[Sample], test: list[Sample]) -> Leakage:
    write_records(folder / "train.jsonl", train)
    write_records(folder / "test.jsonl", test)
    leakage = find_leaks(folder / "train.jsonl", folder / "test.jsonl")
    assert leakage.total == len(test)
    return leakage


def drawings(count: int) -> list[Image.Image]:
    """Blurred colours and, as in mathematics, thin lines on white."""
    rng = np.random.default_rng(0)
    pictures = [
        Image.fromarray(rng.integers(0, 256, (12, 12, 3)).astype(np.uint8)).resize((240, 200), 3)
        for _ in range(count // 2)
    ]
    for _ in range(count - len(pictures)):
        page = Image.new("RGB", (300, 220), "white")
        ImageDraw.Draw(page).line([tuple(p) for p in rng.integers(20, 200, (6, 2))], "black", 3)
        pictures.append(page)
    return pictures


def test_what_is_the_same_and_what_is_alike_are_told_apart(tmp_path: Path) -> None:
    pictures = drawings(40)
    train = [shown(f"a{i}", p, f"Question {i} about this picture?") for i, p in enumerate(pictures)]
    smaller = pictures[3].resize((120, 100))
    test = [
        shown("smaller", smaller, "Something else entirely, please?", "JPEG"),
        shown("equal", pictures[5], "Something else again, if you please?"),
        shown("asked", Image.fromarray(noise(50, 50)), "QUESTION 7, about this -- picture"),
        shown("both", pictures[9], "Question 9 about this picture"),
        shown("short", Image.fromarray(noise(52, 50, 2)), "How many?"),
        shown("new", Image.fromarray(noise(200, 90, 5)), "A question never asked before now?"),
        shown("blank", Image.new("RGB", (99, 99), "white"), "Blank pages are all alike, no?"),
    ]
    blank = shown("a-blank", Image.new("RGB", (30, 30), "white"), "How many?")
    assert found(tmp_path, [*train, blank], test) == Leakage(
        total=7,
        leaks=[
            Match("a5", "equal", "same file"),
            Match("a9", "both", "same file and same question"),
        ],
        alike=[Match("a3", "smaller", "similar picture"), Match("a7", "asked", "same question")],
    )


def test_a_question_without_media_is_told_by_its_words(tmp_path: Path) -> None:
    """Asked about another picture it is another question."""
    words = "What is the largest prime below 100?"
    text = Sample("t", (Message("user", (TextPart(words),)),))
    pictured = shown("p", Image.fromarray(noise(60, 60)), words)
    train = [Sample("a", text.messages)]
    leakage = found(tmp_path, train, [text, pictured])
    assert leakage.leaks == [Match("a", "t", "same question")]
    assert leakage.alike == [Match("a", "p", "same question")]


def test_a_picture_of_the_test_data_is_not_decoded_again(tmp_path: Path) -> None:
    """Its look is known, and what else of the test data looks like it is found all the same."""
    picture = drawings(2)[1]
    again = picture.resize((150, 110))
    test = [shown("same", picture, "?"), shown("smaller", again, "?")]
    leakage = found(tmp_path, [shown("a", picture, "?")], test)
    assert leakage.leaks == [Match("a", "same", "same file")]
    assert leakage.alike == [Match("a", "smaller", "similar picture")]


def test_pictures_of_one_colour_are_found_by_their_bytes(tmp_path: Path) -> None:
    """They have no look, and were missed."""
    blank = Image.new("RGB", (64, 64), "white")
    leakage = found(tmp_path, [shown("a", blank, "?")], [shown("b", blank, "?")])
    assert leakage.leaks == [Match("a", "b", "same file")]


def test_videos_are_compared_by_their_bytes(tmp_path: Path) -> None:
    for number in range(2):
        write_video(tmp_path / f"{number}.mp4", frames=8 + number, fps=4)
    (tmp_path / "copy.mp4").write_bytes((tmp_path / "1.mp4").read_bytes())
    train = [asked(f"a{n}", MediaRef("video", tmp_path / f"{n}.mp4")) for n in range(2)]
    moment = MediaRef("video", tmp_path / "copy.mp4", options={"start": 0.5})
    leakage = found(tmp_path, train, [asked("b", moment)])
    assert leakage == Leakage(1, [Match("a1", "b", "same file")], [])


def test_the_test_data_may_be_several_files(tmp_path: Path) -> None:
    picture = drawings(2)[0]
    for name in ("x", "y", "z"):
        write_records(tmp_path / f"tests/{name}.jsonl", [shown(name, picture, "?")])
    text = (tmp_path / "tests/y.jsonl").read_text()
    (tmp_path / "tests/y.jsonl").write_text("\n\n" + text)
    write_records(tmp_path / "train.jsonl", [shown("a", picture, "?")])
    leakage = find_leaks(tmp_path / "train.jsonl", tmp_path / "tests")
    assert leakage.total == 3
    assert [m.second for m in leakage.leaks] == ["x", "y", "z"]


def test_a_picture_and_a_question_in_one(tmp_path: Path) -> None:
    pictures = drawings(8)
    train = [shown(f"a{n}", p, "How many lines are in it?") for n, p in enumerate(pictures)]
    test = [shown("b", pictures[6].resize((100, 90)), "How many lines are in it?")]
    leakage = found(tmp_path, train, test)
    assert leakage.alike == [Match("a6", "b", "similar picture and same question")]
    assert not leakage.leaks


CHANGES = {
    "JPEG": lambda image: Image.open(io.BytesIO(encoded(image, "JPEG"))),
    "half": lambda image: image.resize((image.width // 2, image.height // 2)),
    "double": lambda image: image.resize((image.width * 2, image.height * 2)),
    "darker": lambda image: ImageEnhance.Brightness(image).enhance(0.8),
    "grey": lambda image: image.convert("L"),
    "margin": lambda image: ImageOps.expand(image, 12, "white"),
}


@pytest.mark.parametrize("change", CHANGES)
def test_changed_copies_look_alike_and_others_do_not(change: str) -> None:
    pictures = drawings(30)
    index = Index(Looks.of(pictures))
    copies = Looks.of([CHANGES[change](picture) for picture in pictures])
    if change == "margin":  # of the drawings: colours have no margin to take away
        found = index.find(copies)[15:]
        assert sum(hits.tolist() == [n] for n, hits in enumerate(found, 15)) >= 14
    else:
        assert [hits.tolist() for hits in index.find(copies)] == [[n] for n in range(30)]


def test_candidates_leave_out_nothing_near(monkeypatch: pytest.MonkeyPatch) -> None:
    """The index finds what a comparison of every two finds, unless they share no byte of bits."""
    rng = np.random.default_rng(1)
    known = Looks.of(drawings(30))
    noisy = known.tones + rng.normal(0, 14, known.tones.shape)
    asked_for = Looks(
        known.bits ^ (rng.random(known.bits.shape) < 0.2),
        np.rint(noisy).clip(-127, 127).astype(np.int8),
    )
    for hits, bits, tones in zip(
        Index(known).find(asked_for), asked_for.bits, asked_for.tones, strict=True
    ):
        expected = []
        for number in range(30):
            for part, limit in enumerate(LIMITS):
                correlation = np.corrcoef(
                    np.append(tones[part], -tones[part].astype(int)),
                    np.append(known.tones[number, part], -known.tones[number, part].astype(int)),
                )[0, 1]
                if correlation > limit and (bits[part] == known.bits[number, part]).any():
                    expected.append(number)
        assert hits.tolist() == sorted(set(expected))


def test_normalised_questions() -> None:
    assert normalised("  Où est-ce\tque X=2?") == "ou est ce que x 2"


@pytest.mark.skipif(SHARED is None, reason="no sample data beside this checkout")
def test_lmm_r1_rows_are_test_items_of_math_vision(tmp_path: Path) -> None:
    samples = SHARED / "samples"
    first = load_image(MediaRef("image", samples / "lmm_r1_messages/images/1.jpg"))
    lmm = [shown("lmm", first, "Which number should be written in place of the question mark?")]
    vision = [
        shown(p.stem, load_image(MediaRef("image", p)), f"Question {p.stem} of MATH-V, is it?")
        for p in sorted((samples / "math_vision/images").glob("*.jpg"))
    ]
    leakage = found(tmp_path, lmm, vision)
    assert [m.second for m in leakage.leaks + leakage.alike] == ["1"]
