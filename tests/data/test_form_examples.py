"""Every format has an example row, which is recognised and read; the documentation shows it."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

from mmr1.data.forms import FORMS, recognise
from mmr1.types import Sample
from tests.data.form_rows import read, write_media, written
from tests.paths import REPOSITORY

EXPECTED: dict[str, tuple[list[str], object, str | None]] = {
    "canonical_parquet": (["user: [a.png]Find x."], "5", "math"),
    "canonical": (["user: [a.png]Find x."], "5", "math"),
    "lmm_r1": (["user: [a.png]Find x."], "$\\boxed{5}$", "math"),
    "verl": (["user: [a.png]Find x."], "5", "math"),
    "openrlhf": (["user: [a.png]Find x."], "5", "math"),
    "trl": (["user: [a.png]Find x."], "5", None),
    "sharegpt": (["user: [a.png]Who?", "assistant: A man."], None, None),
    "vlm_r1": (["user: [a.png]Where is the red cup?"], [[3, 6, 33, 28]], "iou"),
    "video_r1": (["user: [clip.mp4]Which animal runs?\nA. cat\nB. ant"], "A", "choice"),
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
    "vqa": (["user: [a.png]How many?"], 4, "count"),
    "swift": (["user: [a.png]Who?", "assistant: A man."], None, None),
}  # fmt: skip


@pytest.mark.parametrize("name", FORMS)
def test_the_example_of_every_format(tmp_path: Path, name: str) -> None:
    write_media(tmp_path)
    example = dict(FORMS[name].example)
    assert recognise(example) == name
    sample = read(example, tmp_path)
    assert isinstance(sample, Sample)
    assert (written(sample), sample.answer, sample.task) == EXPECTED[name]


def test_the_documentation_shows_every_example() -> None:
    path = REPOSITORY / "scripts/dev/forms_table.py"
    spec = importlib.util.spec_from_file_location("forms_table", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    text = (REPOSITORY / "docs/datasets.md").read_text()
    assert module.page(text) == text, "run python scripts/dev/forms_table.py"
    assert all(f"| `{name}` |" in text for name in FORMS)
