"""Every format has an example row, which is recognised and read; the documentation shows it."""

from __future__ import annotations

import importlib
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from datasets_prep.conversion import convert
from mmr1.config import DataConfig
from mmr1.data.forms import FORMS, built_in_forms, recognise
from mmr1.data.readers import KINDS
from mmr1.data.sources import load_samples
from mmr1.types import Sample
from tests.data.form_rows import examples as form_examples
from tests.data.form_rows import read, write_media, written
from tests.paths import REPOSITORY

EXPECTED: dict[str, tuple[list[str], object, str | None]] = {
    "canonical": (["user: [a.png]Find x."], "5", "math"),
    "lmm_r1": (["user: [a.png]Find x."], "$\\boxed{5}$", "math"),
    "verl": (["user: [a.png]Find x."], "5", "math"),
    "openrlhf": (["user: [a.png]Find x."], "5", "math"),
    "trl": (["user: [a.png]Find x."], "5", None),
    "sharegpt": (["user: [a.png]Who?", "assistant: A man."], None, None),
    "vlm_r1": (["user: [a.png]Where is the red cup?"], [[3, 6, 33, 28]], "iou"),
    "video_r1": (["user: [clip.mp4]Which animal runs?Options:\nA. cat\nB. ant\n"], "A", "choice"),
    "rec": (["user: [a.png]the red cup"], [[3.5, 6.0, 33.5, 28.25]], "iou"),
    "r1_v": (["user: [a.png]How many?"], "3", "math"),
    "r1_v_eval": (["user: [a.png]How many?"], 4, "count"),
    "easyr1": (["user: [a.png]Find x."], "5", "math"),
    "mathvista": (
        ["user: [a.png]How far is it? (in km) Round to 1 decimal place(s)."], "2.5", "numeric",
    ),
    "mmmu": (["user: [a.png] Which is it?\nA. a cat\nB. an ant"], "A", "choice"),
    "vlmevalkit": (["user: [a.png]Which colour?\nA. red\nB. blue"], "A", "choice"),
    "clevr": (["user: [a.png]Is there a bus?"], "yes", "exact"),
    "tvgbench": (
        ['user: [clip.mp4]When does this happen: "a cat runs"? Give start and end.'],
        [0.2, 0.8], "tiou",
    ),
    "time_r1": (
        ['user: [clip.mp4]When does this happen: "A cat runs"? Give start and end.'],
        [0.2, 0.8], "tiou",
    ),
    "vqa": (["user: [a.png]How many?"], 4, "count"),
    "vqa_references": (["user: [a.png]What is it?"], ["cup", "a cup"], "vqa_soft"),
    "chartqa": (["user: [a.png]How much is it?"], ["14%"], "relaxed"),
    "swift": (["user: [a.png]Who?", "assistant: A man."], None, None),
}  # fmt: skip


ROWS = form_examples()


@pytest.mark.parametrize("name", FORMS.builtin)
def test_the_example_of_every_format(tmp_path: Path, name: str) -> None:
    write_media(tmp_path)
    _, who, keys, example = next(row for row in ROWS if row[0] == name)
    form = FORMS.load(name)
    assert (who, keys) == (form.written_by, ", ".join(f"`{key}`" for key in form.keys))
    assert recognise(example) == name
    sample = read(example, tmp_path)
    assert isinstance(sample, Sample)
    assert (written(sample), sample.answer, sample.task) == EXPECTED[name]


VARIANTS: dict[str, tuple[list[str], object, str | None]] = {
    "verl, a part that holds its picture": (["user: [a.png]x?"], "5", None),
    "OpenRLHF, a chat as JSON text": (["user: [a.png]x?"], "5", "math"),
    "TRL, a prompt that is a text": (["user: What is 2 + 3?"], "5", None),
    "OpenAI, a picture by its address (`data:` too)": (
        ["user: [a.png]Who?", "assistant: A man."], None, None,
    ),
    "Qwen, a video with its options": (["user: [clip.mp4]Who?"], "5", "math"),
    "ms-swift, boxes that are the reply": (
        ["user: [a.png]Find the cup."], [[3.0, 6.0, 33.0, 28.0]], "iou",
    ),
    "DocVQA, InfographicVQA, ST-VQA": (
        ["user: [a.png]Which year?"], ["1998", "in 1998"], "anls",
    ),
    "MATH-Vision": (["user: Which? [a.png]\nA. one\nB. two"], "B", "choice"),
}  # fmt: skip


@pytest.mark.parametrize("name", VARIANTS)
def test_the_variants_of_formats(tmp_path: Path, name: str) -> None:
    write_media(tmp_path)
    ((form, _, _, row),) = [row for row in ROWS if row[1] == name]
    assert recognise(row) == form
    sample = read(row, tmp_path)
    assert (written(sample), sample.answer, sample.task) == VARIANTS[name]


def test_every_variant_is_read() -> None:
    usual = {form.written_by for form in built_in_forms()}
    assert {who for _, who, _, _ in ROWS} - usual == set(VARIANTS)


QUESTION = ["user: [a.png]How many?"]
FILES: dict[str, list[tuple[list[str], object, str | None]]] = {
    "rows.jsonl": [(QUESTION, "3", "math")],
    "rows.jsonl.gz": [(QUESTION, "3", "math")],
    "lines.json": [(QUESTION, "3", "math")] * 2,
    "array.json": [(QUESTION, "3", "math")],
    "array.json.gz": [(QUESTION, "3", "math")],
    "questions.json": [(["user: [a.png]How many buses?"], "2", "count")],
    "testmini.json": [(QUESTION, "3", "math")],
    "mathvista.parquet": [(["user: [bytes]How far?"], "25", "numeric")],
    "math_vision.parquet": [(["user: Which? [bytes]\nA. one\nB. two"], "B", "choice")],
    "bench.tsv": [(["user: [bytes]Colour?\nA. red\nB. blue"], "A", "choice")],
    "rows.csv": [(QUESTION, "3", "math")],
    "parts": [(QUESTION, "3", "math")],
    "saved": [(["user: [bytes]When?"], "2", "math")],
    "instances.json": [
        (["user: [picture]Locate every cup in the image. Give their bounding boxes."],
         [[4.0, 8.0, 24.0, 23.0]], "iou"),
    ],
    "refcoco": [
        (["user: [picture]Give the bounding box of: The left cup"],
         [[4.0, 8.0, 24.0, 23.0]], "iou"),
    ],
}  # fmt: skip


@pytest.fixture(scope="module")
def examples() -> Iterator[Any]:
    """The script that writes the tables."""
    sys.path.insert(0, str(REPOSITORY / "scripts/dev"))
    yield importlib.import_module("forms_table")
    sys.path.remove(str(REPOSITORY / "scripts/dev"))


@pytest.mark.parametrize("name", FILES)
def test_the_example_of_every_kind_of_file(tmp_path: Path, examples: Any, name: str) -> None:
    (example,) = [e for e in examples.file_examples.EXAMPLES if e.name == name]
    write_media(tmp_path)
    spec = example.write(tmp_path)
    config = DataConfig(media_root=str(tmp_path))
    if example.converter is not None:
        convert(example.converter, spec, tmp_path / "out", tmp_path, workers=1)
        spec, config = tmp_path / "out", DataConfig()  # training takes it as it is
    samples = [
        ([re.sub(r"[0-9a-f]{32}\.png", "picture", m) for m in written(s)], s.answer, s.task)
        for s in load_samples(spec, config)
    ]
    assert samples == FILES[name]


def test_every_kind_of_file_is_read(examples: Any) -> None:
    assert {e.name for e in examples.file_examples.EXAMPLES} == set(FILES)
    names = " ".join(name for e in examples.file_examples.EXAMPLES for name in e.files)
    assert all(kind in names for kind in KINDS)


def test_the_documentation_shows_every_example(examples: Any) -> None:
    text = (REPOSITORY / "docs/datasets.md").read_text()
    assert examples.page(text) == text, "run python scripts/dev/forms_table.py"
    assert all(f"| `{name}` |" in text for name in (*FORMS.builtin, *FILES))
    assert examples.page(text.replace("| `rows.csv` |", "| `r.csv` |")) == text
